"""Can anybody hold what is being replaced, so that the search is worth its time? References are counted.

A look at the heap of a trainer takes as long as all else that is done for a site. Where there are no more
references to an original than its module or class has, and overlay itself, there is nobody to look for. The
references of a function that nobody has touched tell how many that is: what an interpreter adds of its own is
in both counts.
"""

from __future__ import annotations

import gc
import sys
from _weakref import getweakrefcount
from types import CellType, FunctionType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: How deep the closure of a replacement is followed: function, tuple, cell, function.
_DEPTH = 7


def is_alone(parent: Any, name: str, made: FunctionType, kept: int) -> bool:
    """Return whether nobody else has a reference to what stands at a name, where it is about to be replaced.

    Args:
        parent: The module or class that holds it.
        name: Its name there: of a function, a static method or a class method.
        made: The replacement, whose marks and closure may have references to the function.
        kept: How many references the caller has to what stands there.

    """
    sample = _SAMPLES.get(type(vars(parent).get(name)))
    if sample is None or not _counts_tell():
        return False
    found, plain = _counts(parent, name), _counts(_Sample, sample)
    raw = vars(parent)[name]
    more = [kept] if type(raw) is FunctionType else [kept, 0]
    function = raw if type(raw) is FunctionType else raw.__func__
    if getweakrefcount(raw) or getweakrefcount(function):
        return False
    more[-1] += _references(function, made)
    return all(count - own <= least for count, own, least in zip(found, more, plain, strict=True))


def _counts_tell() -> bool:
    """Return whether a count of references is one: without the interpreter's lock there are two to add."""
    return sys.implementation.name == "cpython" and bool(getattr(sys, "_is_gil_enabled", lambda: True)())


def _counts(parent: Any, name: str) -> list[int]:
    """Return how many references there are to what stands at a name, and to a function inside that."""
    raw = vars(parent)[name]
    counts = [sys.getrefcount(raw)]
    if type(raw) is not FunctionType:
        function = raw.__func__
        counts.append(sys.getrefcount(function))
    return counts


def _references(function: object, made: FunctionType) -> int:
    """Return how many references a replacement has: in its dictionary, and in the cells of its closure.

    Functions in there are followed if they come from the same file: what another one has in its closure is an
    alias that somebody made.
    """
    found, seen = 0, {id(made)}
    level: list[Any] = [made, vars(made)]
    for _ in range(_DEPTH):
        further: list[Any] = []
        for holder in level:
            for part in gc.get_referents(holder):
                if part is function:
                    found += 1
                elif id(part) not in seen and _is_followed(part, holder, made):
                    seen.add(id(part))
                    further.append(part)
        level = further
    return found


def _is_followed(part: object, holder: object, made: FunctionType) -> bool:
    if type(part) is FunctionType:
        return type(holder) is CellType and part.__globals__ is made.__globals__
    if type(holder) is FunctionType:
        return part is holder.__closure__
    return type(holder) is tuple and type(part) is CellType


class _Sample:
    """What nobody else holds."""

    def plain(self) -> None:
        """Stand at a name of a class."""

    @staticmethod
    def static() -> None:
        """Stand there as a static method."""

    @classmethod
    def of_class(cls) -> None:
        """Stand there as a class method."""


_SAMPLES: dict[type, str] = {FunctionType: "plain", staticmethod: "static", classmethod: "of_class"}
