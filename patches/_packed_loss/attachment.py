"""The arguments of a loss function without the zero that upstream attaches to all logits under allgather CP.

Upstream adds `0 * logits.sum()` to the loss, so that the backward of a rank without response tokens reaches
the model too. Its gradient meets that of the log-probabilities as a tensor that cannot be added to in place:
one more of full size. And the loss is NaN as soon as one logit is infinite. `get_log_probs_and_entropy` as it
is replaced is part of every rank's graph anyway.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Where arguments of which `allgather_cp` was taken keep those that they are a copy of.
_TRUE = "_overlay_true_args"


def true_arguments(args: Any) -> Any:
    """Return slime's arguments as they were given to the loss function."""
    return getattr(args, _TRUE, args)


def unattached(args: Any) -> Any:
    """Return arguments by which nothing is attached, if the loss is one that gets its logits from here."""
    if not args.allgather_cp or args.loss_type not in ("policy_loss", "sft_loss"):
        return args
    import copy

    changed = copy.copy(args)
    changed.allgather_cp = False
    setattr(changed, _TRUE, args)
    return changed
