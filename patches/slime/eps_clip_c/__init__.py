"""`slime.eps-clip-c`: `--eps-clip-c` bounds the loss of tokens with a negative advantage.

slime's loss of a token takes the bound, and its caller leaves it out. The former is compiled, and so cannot
be replaced; the caller has the arguments, and runs as it is over the names of its module, of which that one
is bound to the option. FSDP's trainer has a caller of its own, which stays as it is.
"""

from __future__ import annotations

from overlay.compat.projects import SLIME
from overlay.patch import Patch, Removal, fixed, known, one_target, replaced, variant
from overlay.patches.slime.eps_clip_c.fix import make_policy_loss

_LOSS = "slime.backends.megatron_utils.loss"

#: `policy_loss_function` without the bound: v0.1.0; v0.2.0; v0.2.1; v0.2.2; v0.2.3 to 286750aa3; v0.3.0;
#: v0.3.1; the image nightly-20260810a.
_UNBOUNDED = (
    *("bb556c77c8b7", "7d02e8733361", "3d7e19bcbf79", "163b17115e53", "7e77e2de889a"),
    *("340ec5d7a55a", "6e57bb01b00b", "3bc49d697dd4"),
)

PATCH = Patch(
    id="slime.eps-clip-c",
    revision=2,
    summary="--eps-clip-c reaches the policy loss",
    why=(
        "slime parses --eps-clip-c, the upper bound of dual-clip PPO, and its policy loss never hands it on: "
        "a token with a negative advantage whose probability has risen since the rollout pushes without a "
        "bound. With the patch the loss of such a token is at most --eps-clip-c times its advantage, as the "
        "option says and as slime does after 0.3.1. A job that is to go on as before leaves the option out, "
        "which did nothing. A bound of 1 or less, which slime's loss refuses, goes on doing nothing, with a "
        "warning. FSDP's trainer, which slime 0.2.0 to 0.2.2 have too, is not changed."
    ),
    changes=("numbers",),
    met="--eps-clip-c on Megatron.",
    upstream=("THUDM/slime#2247",),
    evidence=(
        "slime's commit 78156c5 (#2247, after 0.3.1) hands the option on in the same way; loss and "
        "gradient are those of a float64 reference with the bound."
    ),
    remove=Removal(
        when="a release hands --eps-clip-c to compute_policy_loss",
        test="tests/real/test_contracts.py::test_upstream_alone_keeps_the_contract",
    ),
    targets=one_target(
        SLIME,
        # v0.1.0 calls itself 0.0.1.
        variant(
            "0.1 to 0.3",
            ">=0.0.1.dev0,<0.3.2.dev0",
            replaced(f"{_LOSS}:policy_loss_function", make_policy_loss, *_UNBOUNDED),
            known(f"{_LOSS}:compute_policy_loss", "555135d85e09"),
            # v0.1.0 and v0.2.0; v0.2.1 and later
            known("slime.utils.ppo_utils:compute_policy_loss", "376411ae13fb", "d5b00d841345"),
        ),
        # Commits after the tag v0.3.1, which call themselves 0.3.1 as well.
        fixed(
            "after 0.3.1",
            ">=0.3.1.dev0",
            known(f"{_LOSS}:policy_loss_function", "e3c770c481a7"),
            reason="slime hands --eps-clip-c to the loss of a token",
        ),
    ),
)
