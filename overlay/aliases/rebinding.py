"""How is a holder given the replacement, and how is that put back?

Put back is only what is still as we made it: others may have changed it since.
"""

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
        #: Functions that earlier executions of the original's module made of the same source.
        self.earlier: list[ref[FunctionType]] = []
        #: What puts the original back, for each rebound reference. A holder of several has one for all.
        self.undo: list[Callable[[], None]] = []

    def revert(self) -> None:
        """Put the original back into each holder, the last one first."""
        for undo in reversed(self.undo):
            undo()

    def shorten(self) -> None:
        """Name some of many stale references, and count the others."""
        named = list(dict.fromkeys(self.stale))[:_NAMED]
        more = sum(what not in named for what in self.stale)
        self.stale = [*named, f"{more} more"] if more else named


class Undo:
    """Puts one holder back, if nobody has changed it since.

    An object of a class of ours: a search that comes later knows by that that it is nobody's alias.
    """

    __slots__ = ("_arguments", "_put_back")

    def __init__(self, put_back: Callable[..., None], *arguments: Any) -> None:
        self._put_back = put_back
        self._arguments = arguments

    def __call__(self) -> None:
        """Put back what was there."""
        self._put_back(*self._arguments)


def parts(value: Any) -> tuple[Any, ...]:
    """Return the functions in a raw attribute of a class."""
    if is_a(value, property):
        return value.fget, value.fset, value.fdel
    return (value.__func__,) if is_a(value, (staticmethod, classmethod)) else (value,)


def another(holder: Any, new: Callable[[Any], Any]) -> Any:
    """Return a static method, class method or property like `holder`, of the functions that `new` returns."""
    if type(holder) is property:
        fget, fset, fdel = map(new, parts(holder))
        return property(fget, fset, fdel, holder.__doc__)
    made = type(holder)(new(holder.__func__))
    vars(made).update(vars(holder))
    return made


def state(partial: functools.partial[Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any], Any]:
    """Return the function, the arguments, the keywords and the attributes of a partial."""
    state: tuple[Any, tuple[Any, ...], dict[str, Any], Any] = functools.partial.__reduce__(partial)[2]  # type: ignore[assignment]
    return state


def set_in_class(owner: type, key: str, value: object) -> None:
    """Set an attribute of a class. Raises if its metaclass does, or does something else."""
    setattr(owner, key, value)
    if namespace(owner).get(key) is not value:
        msg = f"{key} was not set"
        raise TypeError(msg)


def set_partial(partial: functools.partial[Any], function: Any, arguments: tuple[Any, ...]) -> None:
    """Give a partial another function and arguments, and leave its keywords and attributes."""
    _, _, keywords, inside = state(partial)
    functools.partial.__setstate__(partial, (function, arguments, keywords, inside))  # type: ignore[attr-defined]


def restore_item(holder: dict[Any, Any], key: Any, ours: object, before: object) -> None:
    """Put back an item of a dictionary, unless somebody else has set it since."""
    if dict.get(holder, key) is ours:
        dict.__setitem__(holder, key, before)


def restore_class(owner: type, key: str, ours: object, before: object) -> None:
    """Put back an attribute of a class, unless somebody else has set it since."""
    if namespace(owner).get(key) is ours:
        setattr(owner, key, before)


def restore_defaults(function: FunctionType, ours: object, before: tuple[Any, ...]) -> None:
    """Put back the defaults of a function, unless somebody else has set them since."""
    if function.__defaults__ is ours:
        function.__defaults__ = before


def restore_partial(
    partial: functools.partial[Any], function: Any, arguments: Any, old_function: Any, old_arguments: Any
) -> None:
    """Put back the function and the arguments of a partial, unless somebody else has set them since."""
    now, arguments_now, *_ = state(partial)
    if now is function and arguments_now is arguments:
        set_partial(partial, old_function, old_arguments)
