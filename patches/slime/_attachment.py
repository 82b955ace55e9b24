"""Loss functions without the zero that upstream attaches to all logits under allgather CP.

Upstream adds `0 * logits.sum()` to the loss, so that the backward of a rank without response tokens reaches
the model too. Its gradient meets that of the log-probabilities as a tensor that cannot be added to in place:
one more of full size. And the loss is NaN as soon as one logit is infinite. `get_log_probs_and_entropy` as it
is replaced is part of every rank's graph anyway.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

#: Where arguments of which `allgather_cp` was taken keep those that they are a copy of.
_TRUE = "_overlay_true_args"


def true_arguments(args: Any) -> Any:
    """Return slime's arguments as they were given to the loss function."""
    return getattr(args, _TRUE, args)


def make_loss(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build `loss_function` of slime 0.2.3 and 0.2.4."""

    def loss_function(args: Any, batch: Any, num_microbatches: int, logits: Any) -> Any:
        return original(unattached(args), batch, num_microbatches, logits)

    return loss_function


def make_step_loss(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build `loss_function` of slime 0.3.0, which is told the number of samples of a step."""

    def loss_function(
        args: Any, batch: Any, num_microbatches: int, step_global_batch_size: int, logits: Any
    ) -> Any:
        return original(unattached(args), batch, num_microbatches, step_global_batch_size, logits)

    return loss_function


def make_step_loss_with_top_p(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build `loss_function` of slime 0.3.1: with top-p sets the log-probabilities are upstream's own."""
    unattached = make_step_loss(original, module)

    def loss_function(
        args: Any, batch: Any, num_microbatches: int, step_global_batch_size: int, logits: Any
    ) -> Any:
        call = unattached if args.rollout_top_p == 1 else original
        return call(args, batch, num_microbatches, step_global_batch_size, logits)

    return loss_function


def unattached(args: Any) -> Any:
    """Return arguments by which nothing is attached, if the loss is one that gets its logits from here."""
    if not args.allgather_cp or args.loss_type not in ("policy_loss", "sft_loss"):
        return args
    import copy

    changed = copy.copy(args)
    changed.allgather_cp = False
    setattr(changed, _TRUE, args)
    return changed
