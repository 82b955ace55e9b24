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


def sole_names(parent: Any, name: str, made: FunctionType) -> list[str]:
    """Return the names under which a parent alone has what stands at one, none if anybody else may have it.

    Asked before that is replaced. `parent` is the module or class, `made` the replacement. The caller may
    have one more reference to it.
    """
    kind = type(vars(parent).get(name))
    counted = getattr(sys, "_is_gil_enabled", lambda: True)()  # without the lock, each thread counts its own
    if kind not in _FREE or not counted:
        return []
    (outer, inner), (least_outer, least_inner) = _counts(vars(parent), name), _counts(_FREE, kind)
    raw = vars(parent)[name]
    function = getattr(raw, "__func__", raw)
    ours = sum(part is function for holder in inside(made) for part in gc.get_referents(holder))
    names = [key for key, value in vars(parent).items() if value is raw]
    plain = len(names) if raw is function else 0
    referenced = inner - ours - plain > least_inner or (not plain and outer - len(names) > least_outer)
    return [] if referenced or getweakrefcount(raw) or getweakrefcount(function) else names


def _counts(names: Any, name: Any) -> tuple[int, int]:
    """Return how many references there are to what stands at a name, and to the function inside that."""
    raw = names[name]
    function = getattr(raw, "__func__", raw)
    return sys.getrefcount(raw), sys.getrefcount(function)
