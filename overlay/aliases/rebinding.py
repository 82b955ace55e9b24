"""How is a holder given another function than the one that it holds?"""

from __future__ import annotations

import functools

from overlay.aliases.referrers import is_a, namespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _weakref import ref
    from collections.abc import Callable
    from types import FunctionType
    from typing import Any

#: So many of those who keep an original are named. It ends up in one line of a log.
_NAMED = 5


class Rebinding:
    """What became of the references to one original."""

    def __init__(self, replacement: Any) -> None:
        self.replacement = replacement
        #: References that hold the replacement now.
        self.rebound: list[str] = []
        #: References that still hold the original.
        self.stale: list[str] = []
        #: What classes have now in place of static methods, class methods and properties of an original.
        self.swapped: list[Swapped] = []
        #: Functions that earlier executions of the original's module made of the same source.
        self.earlier: list[ref[FunctionType]] = []

    def shorten(self) -> None:
        """Name some of many stale references, and count the others."""
        named = list(dict.fromkeys(self.stale))[:_NAMED]
        more = sum(what not in named for what in self.stale)
        self.stale = [*named, f"{more} more"] if more else named


class Swapped:
    """A static method, class method or property, and the one that took its place.

    An object of a class of ours: a search that comes later knows by that that it is nobody's alias.
    """

    __slots__ = ("after", "before")

    def __init__(self, before: Any, after: Any) -> None:
        self.before = before
        self.after = after


def parts(value: Any) -> tuple[Any, ...]:
    """Return the functions in a raw attribute of a class."""
    if is_a(value, property):
        return value.fget, value.fset, value.fdel
    return (value.__func__,) if is_a(value, (staticmethod, classmethod)) else (value,)


def another(holder: Any, new: Callable[[Any], Any]) -> Any:
    """Return a static method, class method or property like `holder`, of the functions that `new` returns.

    It is `holder` itself if they are the same.
    """
    if all(new(part) is part for part in parts(holder)):
        return holder
    if type(holder) is property:
        fget, fset, fdel = map(new, parts(holder))
        return property(fget, fset, fdel, holder.__doc__)
    made = type(holder)(new(holder.__func__))
    vars(made).update(vars(holder))
    return made


def set_in_class(owner: type, key: str, value: object) -> None:
    """Set an attribute of a class. Raises if its metaclass does, or does something else."""
    setattr(owner, key, value)
    if namespace(owner).get(key) is not value:
        msg = f"{key} was not set"
        raise TypeError(msg)


def state(partial: functools.partial[Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any], Any]:
    """Return the function, the arguments, the keywords and the attributes of a partial."""
    state: tuple[Any, tuple[Any, ...], dict[str, Any], Any] = functools.partial.__reduce__(partial)[2]  # type: ignore[assignment]
    return state


def set_partial(partial: functools.partial[Any], function: Any, arguments: tuple[Any, ...]) -> None:
    """Give a partial another function and arguments, and leave its keywords and attributes."""
    _, _, keywords, inside = state(partial)
    functools.partial.__setstate__(partial, (function, arguments, keywords, inside))  # type: ignore[attr-defined]
