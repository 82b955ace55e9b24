"""`slime.eps-clip-c`: `--eps-clip-c` bounds the loss of tokens with a negative advantage."""

from functools import wraps
from typing import Any

from overlay import log
from overlay.compat.projects import SLIME
from overlay.effect import effect
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches._rebound import rebound

_SITE = "slime.backends.megatron_utils.loss:policy_loss_function"
_ON = ["slime.backends.megatron_utils.loss:compute_policy_loss", "slime.utils.ppo_utils:compute_policy_loss"]
EFFECT = effect(__name__, "micro-batch", did="bounded the loss of", always=True)


def make_policy_loss(original: Any, module: Any) -> Any:
    """Hand the bound to slime's loss of a token, which is compiled and cannot be replaced itself."""
    own = module.compute_policy_loss

    def policy_loss_function(args: Any, *rest: Any, **named: Any) -> Any:
        bound = getattr(args, "eps_clip_c", None)
        if bound is None or not bound > 1:
            if bound is not None:  # slime's loss would refuse it, and jobs that set it so have run
                log.warning(f"--eps-clip-c {bound} has no effect: raise it above 1, or leave it out")
            return original(args, *rest, **named)

        def bounded(*tokens: Any, **options: Any) -> Any:
            if module.compute_policy_loss is not own:
                log.warning("--eps-clip-c has no effect: somebody has replaced slime's compute_policy_loss")
                return module.compute_policy_loss(*tokens, **options)
            EFFECT.changed += 1  # CISPO has a loss of its own, and does not get here
            return own(*tokens, eps_clip_c=bound, **options)

        return rebound(original, module, compute_policy_loss=bounded)(args, *rest, **named)

    return wraps(original)(policy_loss_function)


PATCH = Patch(
    id="slime.eps-clip-c",
    summary="--eps-clip-c reaches the policy loss",
    why="slime parses the upper bound of dual-clip PPO and never hands it to its loss; the patch does.",
    changes=("numbers",),
    met="--eps-clip-c above 1 on Megatron, but for --advantage-estimator cispo.",
    upstream=("THUDM/slime#2247",),
    evidence="slime's commit 78156c5 (after 0.3.1) does the same; loss and gradient are those of float64.",
    targets=one_target(SLIME, variant("0.1 to 0.3", replaced(_SITE, make_policy_loss), *_ON)),
)
