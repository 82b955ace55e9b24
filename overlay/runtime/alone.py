"""Can anybody hold what is being replaced, so that the search is worth its time? References are counted.

Looking through the heap of a trainer takes as long as everything else that is done for a site. The references
that an interpreter itself adds are read off a function that nobody else has.
"""

from __future__ import annotations

import gc
import sys
from _weakref import getweakrefcount
from types import FunctionType

from overlay.runtime.search import inside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Of each kind, one that nobody else has.
_FREE: dict[Any, Any] = {
    FunctionType: lambda: 0, staticmethod: staticmethod(lambda: 0), classmethod: classmethod(lambda _: 0)
}  # fmt: skip


def is_alone(parent: Any, name: str, made: FunctionType) -> bool:
    """Return whether nobody else has a reference to what stands at a name, before it is replaced.

    `parent` is the module or class, `made` the replacement. The caller may have one more reference to it.
    """
    kind = type(vars(parent).get(name))
    counted = getattr(sys, "_is_gil_enabled", lambda: True)()  # without the lock, each thread counts its own
    if kind not in _FREE or not counted:
        return False
    (outer, inner), (least_outer, least_inner) = _counts(vars(parent), name), _counts(_FREE, kind)
    raw = vars(parent)[name]
    function = getattr(raw, "__func__", raw)
    ours = sum(part is function for holder in inside(made) for part in gc.get_referents(holder))
    plain = raw is function
    referenced = inner - ours - plain > least_inner or (not plain and outer - 1 > least_outer)
    return not referenced and not getweakrefcount(raw) and not getweakrefcount(function)


def _counts(names: Any, name: Any) -> tuple[int, int]:
    """Return how many references there are to what stands at a name, and to the function inside that."""
    raw = names[name]
    function = getattr(raw, "__func__", raw)
    return sys.getrefcount(raw), sys.getrefcount(function)
