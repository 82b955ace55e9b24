"""Which objects refer to one of a few functions, and to whom do those belong?

The garbage collector tells. What a running call has in its variables it does not tell; see
`overlay.aliases.frames`.

Nothing here runs code of the objects that it looks at. They may be proxies that raise outside of a request,
or modules that load a framework when they are touched.
"""

from __future__ import annotations

import functools
import gc
import sys
from types import (
    CellType,
    FrameType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    ModuleType,
)

from overlay.aliases import heap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from types import TracebackType
    from typing import Any

#: Objects that a class keeps a function in.
WRAPPERS: tuple[Any, ...] = (staticmethod, classmethod, property)

#: Closures whose function is looked up by name; it takes a look at the whole heap for each.
_NAMED_CELLS = 50

_namespace: Callable[[type], object] = type.__dict__["__dict__"].__get__
_mro: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
_qualname: Callable[[type], str] = type.__dict__["__qualname__"].__get__


class Thawed:
    """Has the collector tell also about what somebody froze, while it is searched: `with Thawed():`.

    Nobody can tell afterwards what was frozen before. So all is frozen again that is there then.
    """

    def __enter__(self) -> None:
        self._frozen, self._collects = heap.frozen(), gc.isenabled()
        if self._frozen:
            gc.disable()  # to collect would write to pages that a server shares with its children
            gc.unfreeze()

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if self._frozen:
            gc.freeze()
            if self._collects:
                gc.enable()


class Holders:
    """The objects that refer to any of `wanted`, and who owns them."""

    def __init__(self, wanted: tuple[object, ...]) -> None:
        self.ids = frozenset(map(id, wanted))
        # The names as well: a function refers to its name, and no other look at the heap is needed for that.
        names = [item.__name__ for item in wanted if type(item) is FunctionType]
        asked = (*wanted, *names)  # Python 3.13 takes the arguments of the call for a holder like any other
        found = [item for item in gc.get_referrers(*asked) if item is not asked and item is not wanted]
        self.found = {id(item): item for item in found if self._refers(item)}
        self._namesakes = [item for item in found if type(item) is FunctionType and id(item) not in self.ids]
        del found, asked  # references that would be counted below
        #: Holders that were too many to ask for their owners.
        self.unasked: set[int] = set()
        self._owners: dict[int, list[Any]] = {}
        #: Whether somebody of whom the collector knows nothing has a reference too.
        self.more = _more_references(wanted, self.found.values())

    def earlier(self, function: FunctionType) -> list[FunctionType]:
        """Return what earlier executions of its module made of the source of a wanted function."""
        return [
            other
            for other in self._namesakes
            if other.__code__ == function.__code__
            and other.__code__.co_filename == function.__code__.co_filename
            and (other.__module__, other.__qualname__) == (function.__module__, function.__qualname__)
        ]

    def _refers(self, item: object) -> bool:
        return any(id(part) in self.ids for part in gc.get_referents(item))

    def owners(self, holder: object) -> list[Any]:
        """Return what refers to a holder, as far as `learn` was told to look for it."""
        return self._owners.get(id(holder), [])

    def learn(self, holders: Collection[object]) -> None:
        """Look up who owns these holders, all in one go: each look at the heap takes its time."""
        cells = [holder for holder in holders if type(holder) is CellType]
        self.unasked.update(map(id, cells[_NAMED_CELLS:]))
        first = [holder for holder in holders if id(holder) not in self.unasked]
        # A cell is in a tuple of a function, a static method in a dictionary of a class: one step further.
        self._learn(self._learn(first))

    def _learn(self, holders: list[Any]) -> list[Any]:
        ids = set(map(id, holders))
        further = []
        asked = tuple(holders)
        for owner in gc.get_referrers(*asked) if asked else ():
            # Of this search, or nothing that could be rebound.
            if type(owner) is list or owner is self.found or owner is asked:
                continue
            for part in gc.get_referents(owner):
                if id(part) in ids:
                    self._note(part, owner)
                    if type(owner) in (FrameType, tuple) or (type(owner) is dict and type(part) in WRAPPERS):
                        further.append(owner)
        return further

    def _note(self, holder: object, owner: object) -> None:
        known = self._owners.setdefault(id(holder), [])
        if not any(owner is other for other in known):
            known.append(owner)


def _more_references(wanted: tuple[object, ...], holders: Iterable[object]) -> bool:
    """Return whether there are references that no known holder has: of a running call, say.

    It spares the usual case a look at the frames, which up to Python 3.12 leaves traces in them.
    """
    if sys.version_info >= (3, 13):
        return True
    known = dict.fromkeys(map(id, wanted), 3)  # `wanted`, the variable below, the argument of `getrefcount`
    for holder in holders:
        for key in [id(part) for part in gc.get_referents(holder)]:  # (no variable that refers to one)
            if key in known:
                known[key] += 1
    return any(sys.getrefcount(item) > known[id(item)] for item in wanted)


def is_a(item: object, kind: Any) -> bool:
    """Return whether an object is of a class, whatever it says itself: proxies have a `__class__` to ask."""
    return issubclass(type(item), kind)


def is_ours(module: object) -> bool:
    """Return whether a module is of overlay."""
    return type(module) is str and module.partition(".")[0] == "overlay"


def namespace(cls: type) -> Any:
    """Return the dictionary of a class itself; its `__dict__` is a view of that."""
    return gc.get_referents(_namespace(cls))[0]


def dict_of(item: object) -> dict[str, Any] | None:
    """Return the dictionary of an object, without asking the object for it."""
    for cls in _mro(type(item)):
        slot = namespace(cls).get("__dict__")
        if type(slot) in (GetSetDescriptorType, MemberDescriptorType):
            try:
                inside = slot.__get__(item)
            except Exception:  # noqa: BLE001 -- an object of an extension that is not set up
                return None
            return inside if issubclass(type(inside), dict) else None
    return None


def slots_of(item: object) -> list[tuple[str, object]]:
    """Return what an object has in the slots of its class, by name."""
    found = []
    for cls in _mro(type(item)):
        for name, slot in list(namespace(cls).items()):
            if type(slot) is MemberDescriptorType:
                try:
                    found.append((name, slot.__get__(item)))
                except Exception:  # noqa: BLE001, S112 -- nothing in it yet
                    continue
    return found


def module_of(item: Any) -> ModuleType | None:
    """Return the module whose dictionary an object is, if it is one that `sys.modules` has."""
    name = dict.get(item, "__name__") if issubclass(type(item), dict) else None
    module = sys.modules.get(name) if type(name) is str else None
    return module if module is not None and dict_of(module) is item else None


def kind_of(item: object) -> str:
    """Return the name of an object's class."""
    return _qualname(type(item))


def name_of(item: type | FunctionType) -> str:
    """Return where a class or a function is defined, as `module:name`."""
    if type(item) is FunctionType:
        return f"{item.__module__}:{item.__qualname__}"
    return f"{namespace(item).get('__module__', '')}:{_qualname(item)}"


def content(cell: CellType) -> object:
    """Return what is in a cell, `None` if there is nothing yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def owner_of_dict(holder: dict[Any, Any], owners: list[Any]) -> Any:
    """Return the module, class, function, partial or object whose dictionary this is, or `None`.

    Of the dictionary of a module that is not there any more, it is a function that has its names from there.
    """
    module = module_of(holder)
    if module is not None:
        return module
    for owner in owners:
        if is_a(owner, type):
            inside = namespace(owner)
        elif type(owner) is FunctionType:
            mine = (owner.__kwdefaults__, owner.__globals__)
            inside = holder if any(one is holder for one in mine) else owner.__dict__
        elif is_a(owner, functools.partial) and functools.partial.__reduce__(owner)[2][2] is holder:
            inside = holder
        elif type(owner) is FrameType:
            inside = owner.f_locals
        else:
            inside = dict_of(owner)
        if inside is holder:
            return owner
    return None
