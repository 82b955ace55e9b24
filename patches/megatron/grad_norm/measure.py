"""Takes the norm that upstream would have reported, from the gradients of the same step.

A mark that the patch has changed is a number, 0 or 1, and all others are true or false. Optimizers copy the
mark to their shards as it is, so that these tell too which of them upstream has the other way round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

_MARK = "tensor_model_parallel"
#: The first norm of an optimizer, and every so many, is taken twice. That is a hundredth of what norms cost,
#: and on every rank alike: the second one has the collective of the first.
EVERY = 100


def note(parameter: Any, before: object) -> bool:
    """Write a mark so that it tells what it was before, and return whether that was another.

    Parameters are marked once for each optimizer that is built: what is noted stays so.
    """
    marked = getattr(parameter, _MARK, False)
    if bool(marked) != bool(before):
        setattr(parameter, _MARK, int(marked))
        return True
    if type(before) is int:
        setattr(parameter, _MARK, before)
    return False


def make_init(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap the constructor of `ChainedOptimizer`, as which all optimizers are built: it gets another norm.

    On the object, as the method is decorated: what stands there at run time is not what the source has.
    """
    from functools import partial, wraps

    @wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 -- its name
        original(self, *args, **kwargs)
        self.get_grad_norm = partial(norm_of, self)

    return __init__


def norm_of(optimizer: Any) -> Any:
    """Return the norm of a gradient as upstream takes it, with the marks as they are."""
    from overlay.patches.megatron.grad_norm.effect import EFFECT

    take = type(optimizer).get_grad_norm
    norm = take(optimizer)
    own = vars(optimizer)
    own["overlay_norms"] = taken = own.get("overlay_norms", -1) + 1
    if taken % EVERY == 0:
        theirs = _theirs(take, optimizer)
        if norm and theirs and math.isfinite(norm) and math.isfinite(theirs):
            EFFECT.norm, EFFECT.theirs = float(norm), float(theirs)
    return norm


def _theirs(take: Callable[..., Any], optimizer: Any) -> Any:
    """Return the norm with the marks of upstream. They are as they were afterwards, whatever is raised."""
    changed = list(_changed(optimizer))
    try:
        for parameter, marked in changed:
            setattr(parameter, _MARK, not marked)
        return take(optimizer)
    finally:
        for parameter, marked in changed:
            setattr(parameter, _MARK, marked)


def _changed(optimizer: Any) -> Iterator[tuple[Any, int]]:
    """Give the parameters, and shards of such, whose mark the patch has changed."""
    for one in optimizer.chained_optimizers:
        for parameter in one.get_parameters():
            marked = getattr(parameter, _MARK, False)
            if type(marked) is int:
                yield parameter, marked
