"""The arguments of a loss function, without the zero that upstream attaches to logits under allgather CP.

Upstream adds `0 * logits.sum()` to the loss, so that the backward of a rank without response tokens reaches
the model too. That costs one more tensor of full size, and one infinite logit makes the loss NaN. The
replaced `get_log_probs_and_entropy` is part of every rank's graph anyway.
"""

from functools import cache
from typing import Any

#: Where arguments without `allgather_cp` keep those that they stand for.
_TRUE = "_overlay_true_args"


def true_arguments(args: Any) -> Any:
    """Return slime's arguments as they were given to the loss function."""
    return getattr(args, _TRUE, args)


def unattached(args: Any) -> Any:
    """Return arguments by which nothing is attached, if the loss is one that gets its logits from here."""
    if not args.allgather_cp or args.loss_type not in ("policy_loss", "sft_loss"):
        return args
    kind: Any = type(args)
    seen = object.__new__(_without_allgather(kind))
    seen.__dict__ = vars(args)  # what a user's function sets on these arguments is set on the job's
    setattr(seen, _TRUE, args)
    return seen


@cache
def _without_allgather(kind: type) -> Any:
    """Return a class of arguments that say no to `allgather_cp`, and are as those of a class in all else."""
    return type(kind.__name__, (kind,), {"__slots__": (_TRUE,), "allgather_cp": property(lambda _: False)})
