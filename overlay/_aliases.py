"""Aliases: who else holds the function that is being replaced.

`from x import f` before the patch leaves the original in another module, where the patch would silently do
nothing. The garbage collector knows every container that holds an object; those that can be rebound are,
and the others are named.
"""

from __future__ import annotations

import functools
import gc
import sys
from types import CellType, FrameType, FunctionType, MethodType, ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Rebinding:
    """Replaces one original by its replacement wherever a reference to it can be rebound."""

    def __init__(self, original: object, replacement: object) -> None:
        self.original = original
        self.replacement = replacement
        #: References that hold the replacement now.
        self.rebound: list[str] = []
        #: References that still hold the original.
        self.stale: list[str] = []
        #: What puts the original back, for each rebound reference.
        self.undo: list[Callable[[], None]] = []

    def visit(self, holder: Any) -> None:
        """Rebind the references in one container, or note them as stale."""
        for kind, visit in _VISITS:
            if isinstance(holder, kind):
                visit(self, holder)
                return
        inside = _dict_of(holder)
        names = [name for name, value in inside.items() if value is self.original] if inside else []
        self.stale += [f"attribute {name} of a {type(holder).__qualname__}" for name in names]

    def _is(self, value: object) -> bool:
        return value is self.original

    def _done(self, what: str, undo: Callable[[], None]) -> None:
        self.rebound.append(what)
        self.undo.append(undo)

    def _dict(self, holder: dict[Any, Any]) -> None:
        keys = [key for key, value in list(holder.items()) if self._is(value)]
        owner = _owner_of_dict(holder) if keys else None
        for key in keys:
            if isinstance(owner, type):
                setattr(owner, key, self.replacement)
                what = f"{owner.__module__}:{owner.__qualname__}.{key}"
                self._done(
                    what, functools.partial(_restore_class, owner, key, self.replacement, self.original)
                )
            elif isinstance(owner, (ModuleType, FunctionType)):
                holder[key] = self.replacement
                what = f"{owner.__name__}:{key}"
                if isinstance(owner, FunctionType):
                    what = f"the default of {key} in {owner.__module__}:{owner.__qualname__}"
                self._done(
                    what, functools.partial(_restore_item, holder, key, self.replacement, self.original)
                )
            elif owner is not None:
                self.stale.append(f"attribute {key} of a {type(owner).__qualname__}")
            else:
                self.stale.append(f"the entry {key!r} of a dict")

    def _tuple(self, holder: tuple[Any, ...]) -> None:
        """Rebind a tuple that is the defaults of a function or the arguments of a partial."""
        if not any(self._is(item) for item in holder):
            return
        changed = tuple(self.replacement if self._is(item) else item for item in holder)
        before = len(self.rebound)
        for owner in gc.get_referrers(holder):
            if isinstance(owner, FunctionType) and owner.__defaults__ is holder:
                owner.__defaults__ = changed
                what = f"a default of {owner.__module__}:{owner.__qualname__}"
                self._done(what, functools.partial(setattr, owner, "__defaults__", holder))
            elif isinstance(owner, functools.partial) and owner.args is holder:
                _set_partial(owner, owner.func, changed)
                what = "an argument of a functools.partial"
                self._done(what, functools.partial(_set_partial, owner, owner.func, holder))
        if len(self.rebound) == before:
            self.stale.append("an item of a tuple")

    def _partial(self, holder: functools.partial[Any]) -> None:
        if self._is(holder.func):
            undo = functools.partial(_set_partial, holder, self.original, holder.args)
            _set_partial(holder, self.replacement, holder.args)
            self._done("a functools.partial", undo)

    def _cell(self, holder: CellType) -> None:
        if self._is(_content(holder)):
            self.stale.append(f"the closure of {_owner_of_cell(holder)}")

    def _method(self, holder: MethodType) -> None:
        if self._is(holder.__func__):
            self.stale.append(f"a bound method of {type(holder.__self__).__qualname__}")

    def _items(self, holder: list[object] | set[object]) -> None:
        if any(self._is(item) for item in holder):
            self.stale.append(f"an item of a {type(holder).__name__}")

    def _nothing(self, holder: object) -> None:
        """Pass over what is no alias.

        A running frame that was handed the original keeps it for that one call; a function or a module is
        met through its dictionary; the raw attribute of a static or class method is an original of its own.
        """


_VISITS: tuple[tuple[Any, Any], ...] = (
    (dict, Rebinding._dict),  # noqa: SLF001
    (tuple, Rebinding._tuple),  # noqa: SLF001
    (functools.partial, Rebinding._partial),  # noqa: SLF001
    (CellType, Rebinding._cell),  # noqa: SLF001
    (MethodType, Rebinding._method),  # noqa: SLF001
    ((list, set), Rebinding._items),  # noqa: SLF001
    ((FrameType, FunctionType, ModuleType, staticmethod, classmethod), Rebinding._nothing),  # noqa: SLF001
)


def rebind(pairs: list[tuple[object, object]], ignore: list[object]) -> list[Rebinding]:
    """Replace each original by its replacement wherever a reference to it can be rebound.

    `pairs` are (original, replacement); `ignore` are containers of the caller's own that hold originals.
    One pass over the heap serves all pairs.
    """
    rebindings = [Rebinding(original, replacement) for original, replacement in pairs]
    originals = tuple(original for original, _ in pairs)  # a tuple: the call below passes it on as it is
    own = [pairs, *pairs, originals, ignore, *ignore, rebindings, *rebindings]
    own += [vars(rebinding) for rebinding in rebindings]
    own += [part for _, replacement in pairs for part in _inside(replacement)]
    skip = {id(item) for item in own}
    holders = {id(item): item for item in gc.get_referrers(*originals)}
    # `gc.freeze()`, which servers call, hides older objects from the collector: ask the modules themselves.
    holders |= {id(inside): inside for module in list(sys.modules.values()) if (inside := _dict_of(module))}
    for key, holder in holders.items():
        if key not in skip:
            for rebinding in rebindings:
                rebinding.visit(holder)
    return rebindings


def _inside(replacement: object) -> list[object]:
    """Return what holds the original inside our own replacement, or a function that it is made of."""
    function = getattr(replacement, "__func__", replacement)
    if not isinstance(function, FunctionType):
        return []
    cells = list(function.__closure__ or ())
    helpers = [content for cell in cells if isinstance(content := _content(cell), FunctionType)]
    own = [helper for helper in helpers if helper.__module__ == function.__module__]
    return [function.__dict__, *cells, *(cell for helper in own for cell in helper.__closure__ or ())]


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _owner_of_dict(holder: dict[Any, Any]) -> object:
    """Return the module, class, function or instance whose dictionary this is, `None` for a plain dict."""
    name = holder.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    if module is not None and _dict_of(module) is holder:
        return module
    for item in gc.get_referrers(holder):
        if isinstance(item, type):
            # `__dict__` of a class is a view; what it views is the dictionary itself.
            if any(inside is holder for inside in gc.get_referents(item.__dict__)):
                return item
        elif isinstance(item, FunctionType):
            if item.__kwdefaults__ is holder:
                return item
        elif not isinstance(item, (FrameType, dict, list, tuple)) and _dict_of(item) is holder:
            return item
    return None


def _dict_of(item: object) -> dict[str, object] | None:
    """Return the dictionary of an object, without waking a module that loads itself on first use."""
    try:
        inside = object.__getattribute__(item, "__dict__")
    except AttributeError:
        return None
    return inside if isinstance(inside, dict) else None


def _owner_of_cell(cell: CellType) -> str:
    for item in gc.get_referrers(cell):
        if isinstance(item, tuple):
            for function in gc.get_referrers(item):
                if isinstance(function, FunctionType) and function.__closure__ is item:
                    return f"{function.__module__}:{function.__qualname__}"
    return "a function"


def _set_partial(partial: functools.partial[Any], function: Any, arguments: tuple[Any, ...]) -> None:
    partial.__setstate__((function, arguments, partial.keywords, partial.__dict__ or None))  # type: ignore[attr-defined]


def _restore_item(holder: dict[Any, Any], key: Any, ours: object, original: object) -> None:
    if holder.get(key) is ours:
        holder[key] = original


def _restore_class(owner: type, key: str, ours: object, original: object) -> None:
    if owner.__dict__.get(key) is ours:
        setattr(owner, key, original)
