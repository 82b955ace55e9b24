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

    Undo = Callable[[], None]


class Aliases:
    """The references to a set of originals that were found."""

    def __init__(self) -> None:
        #: Per original (by position): references that now hold the replacement.
        self.rebound: dict[int, list[str]] = {}
        #: Per original: references that could not be rebound.
        self.stale: dict[int, list[str]] = {}
        self.undo: list[Undo] = []


def rebind(pairs: list[tuple[object, object]], ignore: list[object]) -> Aliases:
    """Replace each original by its replacement wherever a reference to it can be rebound.

    `pairs` are (original, replacement); `ignore` are containers of the caller's own that hold originals.
    """
    found = Aliases()
    originals = [original for original, _ in pairs]
    mine = {id(item) for item in (pairs, originals, ignore, *pairs, *ignore)}
    mine |= {id(item) for _, replacement in pairs for item in _inside(replacement)}
    holders = {id(item): item for item in gc.get_referrers(*originals)}
    # `gc.freeze()`, which servers call, hides older objects from the collector: ask the modules themselves.
    holders |= {id(item): item for item in _module_dicts()}
    for holder in [item for key, item in holders.items() if key not in mine]:
        if isinstance(holder, FrameType):
            continue  # a running function that was handed the original keeps it for that one call
        for index, (original, replacement) in enumerate(pairs):
            _rebind_in(holder, original, replacement, found, index)
    return found


def _module_dicts() -> list[object]:
    return [inside for module in list(sys.modules.values()) if isinstance(inside := _dict_of(module), dict)]


def _inside(replacement: object) -> list[object]:
    """Return what holds the original inside our own replacement."""
    function = getattr(replacement, "__func__", replacement)
    if not isinstance(function, FunctionType):
        return []
    cells = list(function.__closure__ or ())
    nested = [
        part
        for cell in cells
        if isinstance(content := _content(cell), FunctionType) and content.__module__ == function.__module__
        for part in (*(content.__closure__ or ()), content.__dict__)
    ]
    return [function.__dict__, *cells, *nested]


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _rebind_in(holder: Any, original: object, replacement: object, found: Aliases, index: int) -> None:
    rebound = found.rebound.setdefault(index, [])
    stale = found.stale.setdefault(index, [])
    if isinstance(holder, dict):
        for key in [key for key, value in list(holder.items()) if value is original]:
            _rebind_item(holder, key, original, replacement, found, (rebound, stale))
    elif isinstance(holder, tuple):
        if any(item is original for item in holder):
            _rebind_tuple(holder, original, replacement, found, (rebound, stale))
    elif isinstance(holder, functools.partial):
        if holder.func is original:
            _set_partial(holder, replacement, holder.args)
            found.undo.append(functools.partial(_set_partial, holder, original, holder.args))
            rebound.append("a functools.partial")
    elif isinstance(holder, CellType):
        if _content(holder) is original:
            stale.append(f"the closure of {_owner_of_cell(holder)}")
    elif isinstance(holder, MethodType):
        if holder.__func__ is original:
            stale.append(f"a bound method of {type(holder.__self__).__qualname__}")
    elif isinstance(holder, (staticmethod, classmethod)):
        pass  # the raw attribute itself, or its copy elsewhere, which is a pair of its own
    elif isinstance(holder, (list, set)):
        if any(item is original for item in holder):
            stale.append(f"an item of a {type(holder).__name__}")
    elif not isinstance(holder, (FunctionType, ModuleType)):
        names = [name for name, value in _attributes(holder) if value is original]
        stale.extend(f"attribute {name} of a {type(holder).__qualname__}" for name in names)


def _rebind_item(
    holder: dict[Any, Any],
    key: Any,
    original: object,
    replacement: object,
    found: Aliases,
    lists: tuple[list[str], list[str]],
) -> None:
    rebound, stale = lists
    owner = _owner_of_dict(holder)
    if isinstance(owner, ModuleType):
        holder[key] = replacement
        found.undo.append(functools.partial(_restore_item, holder, key, replacement, original))
        rebound.append(f"{owner.__name__}:{key}")
    elif isinstance(owner, type):
        setattr(owner, key, replacement)
        found.undo.append(functools.partial(_restore_attribute, owner, key, replacement, original))
        rebound.append(f"{owner.__module__}:{owner.__qualname__}.{key}")
    elif isinstance(owner, FunctionType):  # keyword defaults
        holder[key] = replacement
        found.undo.append(functools.partial(_restore_item, holder, key, replacement, original))
        rebound.append(f"the default of {key} in {owner.__module__}:{owner.__qualname__}")
    elif owner is not None:
        stale.append(f"attribute {key} of a {type(owner).__qualname__}")
    else:
        stale.append(f"the entry {key!r} of a dict")


def _rebind_tuple(
    holder: tuple[Any, ...],
    original: object,
    replacement: object,
    found: Aliases,
    lists: tuple[list[str], list[str]],
) -> None:
    """Rebind a tuple that is the defaults of a function or the arguments of a partial."""
    rebound, stale = lists
    changed = tuple(replacement if item is original else item for item in holder)
    owned = False
    for owner in gc.get_referrers(holder):
        if isinstance(owner, FunctionType) and owner.__defaults__ is holder:
            owner.__defaults__ = changed
            found.undo.append(functools.partial(setattr, owner, "__defaults__", holder))
            rebound.append(f"a default of {owner.__module__}:{owner.__qualname__}")
            owned = True
        elif isinstance(owner, functools.partial) and owner.args is holder:
            _set_partial(owner, owner.func, changed)
            found.undo.append(functools.partial(_set_partial, owner, owner.func, holder))
            rebound.append("an argument of a functools.partial")
            owned = True
    if not owned:
        stale.append("an item of a tuple")


def _owner_of_dict(holder: dict[Any, Any]) -> object:
    """Return the module, class, function or instance whose dictionary this is, `None` for a plain dict."""
    name = holder.get("__name__")
    if isinstance(name, str):
        module = sys.modules.get(name)
        if isinstance(module, ModuleType) and _dict_of(module) is holder:
            return module
    for item in gc.get_referrers(holder):
        if isinstance(item, type):
            if any(inner is holder for inner in gc.get_referents(item.__dict__)):
                return item
        elif isinstance(item, FunctionType):
            if item.__kwdefaults__ is holder:
                return item
        elif not isinstance(item, (FrameType, dict, list, tuple)) and _dict_of(item) is holder:
            return item
    return None


def _dict_of(item: object) -> object:
    try:
        return object.__getattribute__(item, "__dict__")
    except AttributeError:
        return None


def _attributes(holder: object) -> list[tuple[str, object]]:
    inside = _dict_of(holder)
    return list(inside.items()) if isinstance(inside, dict) else []


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


def _restore_attribute(owner: type, key: str, ours: object, original: object) -> None:
    if owner.__dict__.get(key) is ours:
        setattr(owner, key, original)
