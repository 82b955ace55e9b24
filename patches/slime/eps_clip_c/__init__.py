"""`slime.eps-clip-c`: `--eps-clip-c` bounds the loss of tokens with a negative advantage.

slime's loss of a token takes the bound, and its caller leaves it out. The former is compiled, and so cannot
be replaced; the caller has the arguments, and runs as it is over the names of its module, of which that one
is bound to the option. FSDP's trainer has a caller of its own, which stays as it is.
"""

from __future__ import annotations

from overlay.compat.projects import SLIME
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches.slime.eps_clip_c.fix import make_policy_loss

_LOSS = "slime.backends.megatron_utils.loss"

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
    targets=one_target(
        SLIME,
        variant(
            "0.1 to 0.3",
            replaced(f"{_LOSS}:policy_loss_function", make_policy_loss),
            f"{_LOSS}:compute_policy_loss",
            "slime.utils.ppo_utils:compute_policy_loss",
        ),
    ),
)
