"""The arguments of a loss function, without the zero that upstream attaches to logits under allgather CP.

Upstream adds `0 * logits.sum()` to the loss, so that the backward of a rank without response tokens reaches
the model too. That costs one more tensor of full size, and one infinite logit makes the loss NaN. The
replaced `get_log_probs_and_entropy` is part of every rank's graph anyway.
"""

from copy import copy
from typing import Any

#: Where arguments without `allgather_cp` keep those that they are a copy of.
_TRUE = "_overlay_true_args"


def true_arguments(args: Any) -> Any:
    """Return slime's arguments as they were given to the loss function."""
    return getattr(args, _TRUE, args)


def unattached(args: Any) -> Any:
    """Return arguments by which nothing is attached, if the loss is one that gets its logits from here."""
    if not args.allgather_cp or args.loss_type not in ("policy_loss", "sft_loss"):
        return args
    changed = copy(args)
    changed.allgather_cp = False
    setattr(changed, _TRUE, args)
    return changed
