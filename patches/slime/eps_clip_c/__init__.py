"""`slime.eps-clip-c`: `--eps-clip-c` bounds the loss of tokens with a negative advantage.

slime's loss of a token takes the bound, and its caller leaves it out. The former is compiled, and so cannot
be replaced; the caller has the arguments, and runs as it is over the names of its module, of which that one
is bound to the option. FSDP's trainer has a caller of its own, which stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from overlay.compat.projects import SLIME
from overlay.effect import effect
from overlay.patch import Patch, one_target, replaced, variant

_LOSS = "slime.backends.megatron_utils.loss"
EFFECT = effect(__name__, "micro-batch", did="bounded the loss of", always=True)


def make_policy_loss(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build the policy loss of a micro-batch: slime's own, with the loss of a token bounded."""
    from overlay import log
    from overlay.patches._rebound import rebound

    def policy_loss_function(args: Any, batch: Any, logits: Any, sum_of_sample_mean: Any) -> Any:
        bound = getattr(args, "eps_clip_c", None)
        if bound is not None and not bound > 1:
            # slime's loss of a token would refuse it, and jobs that set it so have run all the same.
            log.warning(
                f"slime.eps-clip-c: --eps-clip-c {bound} has no effect: slime requires a value above 1. "
                "Raise it, or leave it out"
            )
            bound = None
        if bound is None:
            return original(args, batch, logits, sum_of_sample_mean)
        EFFECT.changed += 1
        bounded = partial(module.compute_policy_loss, eps_clip_c=bound)
        own = rebound(original, module, compute_policy_loss=bounded)
        return own(args, batch, logits, sum_of_sample_mean)

    return policy_loss_function


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
