"""What hands slime's policy loss the option that it leaves out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any


def make_policy_loss(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build the policy loss of a micro-batch: slime's own, with the loss of a token bounded."""
    from overlay import log
    from overlay.patches._rebound import rebound
    from overlay.patches.slime.eps_clip_c.effect import EFFECT

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
