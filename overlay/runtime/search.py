"""Who else holds the function that is being replaced?

`from x import f` before the patch leaves the original in another module, where the patch would silently do
nothing. Modules, classes, default arguments and partials get the replacement. If anything else holds the
original, the search says so, but not what: the way out, to enable overlay earlier, is always the same.

To take a patch out, the search looks for the replacement. It keeps no list of what was rebound: by then that
may hold something else, and others may have taken the replacement.

Looking through the heap of a trainer takes as long as all else that is done for a site. So the references to
an original are counted first: mostly nobody else has any.

No code of the objects it looks at runs: some are proxies, or modules that load when they are touched.
"""

from __future__ import annotations

import atexit
import functools
import gc
import sys
import types
from _weakref import getweakrefcount, getweakrefs, ref
from collections.abc import Iterable
from contextlib import suppress
from operator import attrgetter
from types import CellType, FrameType, FunctionType, ModuleType
from typing import Any

from overlay.source.source import bare

#: Attributes of a replacement: the id of its patch, and what it replaced.
OWNER = "__overlay_patch__"
ORIGINAL = "__overlay_original__"


#: A fresh Python 3.12 has some hundred frozen objects of its own; a server that froze its heap has many more.
_FROZEN_BY_PYTHON = 2000
_SUSPENDED = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
#: Holders whose owner decides what is done, and those whose owner may be a closure or dictionary of another.
_OWNED = (dict, tuple, CellType, staticmethod, classmethod)
_INSIDE = (CellType, staticmethod, classmethod)
#: What a function has in common with those that other executions of its module made.
_place_of = attrgetter("__code__.co_filename", "__module__", "__qualname__")
_partial: Any = functools.partial
#: An object of each kind of site that nobody else holds: its references are those of the counting itself.
_FREE: dict[Any, Any] = {
    FunctionType: lambda: 0, staticmethod: staticmethod(lambda: 0), classmethod: classmethod(lambda _: 0)
}  # fmt: skip


def is_wrapper(function: FunctionType) -> bool:
    """Return whether a function was made with `functools.wraps`: its marks are copies of another's."""
    return "__wrapped__" in function.__dict__


def sole_names(parent: Any, name: str, made: FunctionType) -> list[str]:
    """Return all names under which a parent has the object at one, none if anybody else may have it.

    Called before the object is replaced. `parent` is the module or class, `made` the replacement. The caller
    may have one more reference to the object.
    """
    kind = type(vars(parent).get(name))
    counted = getattr(sys, "_is_gil_enabled", lambda: True)()  # without the lock, each thread counts its own
    if kind not in _FREE or not counted:
        return []
    (outer, inner), (least_outer, least_inner) = _counts(vars(parent), name), _counts(_FREE, kind)
    raw = vars(parent)[name]
    function = getattr(raw, "__func__", raw)
    ours = sum(part is function for holder in _inside(made) for part in gc.get_referents(holder))
    names = [key for key, value in vars(parent).items() if value is raw]
    plain = len(names) if raw is function else 0
    referenced = inner - ours - plain > least_inner or (not plain and outer - len(names) > least_outer)
    return [] if referenced or getweakrefcount(raw) or getweakrefcount(function) else names


def _counts(names: Any, name: Any) -> tuple[int, int]:
    """Return how many references there are to what stands at a name, and to the function inside that."""
    raw = names[name]
    function = getattr(raw, "__func__", raw)
    return sys.getrefcount(raw), sys.getrefcount(function)


def _inside(member: Any) -> list[object]:
    """Return the attributes and the closure cells of a function, and of functions of its module in the cells.

    What a function of another module has in its closure is an alias that somebody made.
    """
    found: list[object] = []
    todo = [member.__func__ if type(member) in (staticmethod, classmethod) else member]
    for function in todo:  # it grows by the functions in the closures
        if type(function) is FunctionType:
            cells = [cell for cell in function.__closure__ or () if not any(cell is part for part in found)]
            found += [function.__dict__, *cells]
            held = [part for cell in cells for part in gc.get_referents(cell) if type(part) is FunctionType]
            todo += [part for part in held if part.__globals__ is function.__globals__]
    return found


class _References(list["ref[FunctionType]"]):
    """Weak references of ours. A search tells them from others by this class."""


class Rebinding:
    """What became of the references to one original."""

    def __init__(self, replacement: Any) -> None:
        self.replacement = replacement
        #: Whether somebody was given the replacement, and whether somebody still holds the original.
        self.rebound = self.held = False
        #: Functions that earlier executions of the original's module made of the same source.
        self.earlier: _References = _References()


def rebind(pairs: list[tuple[Any, Any]]) -> list[Rebinding]:
    """Replace each original by its replacement wherever a reference to it can be rebound.

    `pairs` are (original, replacement), either of which may be ours. One search serves all of them. If it is
    interrupted, what was rebound stays so, and a search with the pairs turned round takes it back.
    """
    if not pairs:
        return []
    search = _Search(pairs)
    # Python does not tell what was frozen, so everything that exists at the end is frozen.
    thawed = frozen()
    if thawed:
        gc.unfreeze()
    try:
        search.run()
    finally:
        if thawed:
            gc.freeze()
    return search.rebindings


def frozen() -> bool:
    """Return whether somebody called `gc.freeze()`: the collector tells nothing about what is frozen."""
    return gc.get_freeze_count() > _FROZEN_BY_PYTHON


def are_held(functions: Iterable[ref[FunctionType]]) -> bool:
    """Return whether anybody holds one of these functions. Each is rebound to itself: nothing changes."""
    pairs = [(item, item) for item in (function() for function in functions) if item is not None]
    return any(found.rebound or found.held for found in rebind(pairs))


class _Search:
    """One search for all originals, and the changes that come of it."""

    def __init__(self, pairs: list[tuple[Any, Any]]) -> None:
        self.rebindings = [Rebinding(replacement) for _, replacement in pairs]
        self._pairs = pairs
        self._for = {id(pair[0]): found for pair, found in zip(pairs, self.rebindings, strict=True)}
        #: Who refers to a holder, by its id.
        self._owners: dict[int, list[Any]] = {}

    def run(self) -> None:
        """Find the holders, and rebind or note each."""
        wanted = tuple(original for original, _ in self._pairs)
        holders = self._find_holders(wanted)
        # Are there more references than those of the holders, `wanted`, the variable here and the argument?
        known = [id(part) for holder in holders for part in gc.get_referents(holder)]
        hidden = any(sys.getrefcount(original) > known.count(id(original)) + 3 for original in wanted)

        own = {id(part) for pair in self._pairs for one in pair for part in (pair, one, *_inside(one))}
        holders = [holder for holder in holders if id(holder) not in own]
        owned = [holder for holder in holders if _is_a(holder, _OWNED) and not _is_of_module(holder)]
        self._find_owners(owned)
        for holder in holders:
            try:
                self._visit(holder, self._owners.get(id(holder), []))
            except Exception:  # noqa: BLE001, PERF203 -- one odd object must not stop the patch
                self._note(gc.get_referents(holder))
        self._look_at_weak(wanted)
        if hidden or sys.version_info >= (3, 13):  # in an older Python, looking leaves traces in the calls
            self._look_at_calls()
        self._note(_atexit_callbacks())

    def _find_holders(self, wanted: tuple[Any, ...]) -> list[object]:
        """Return what refers to an original, and note what earlier executions made of the same source."""
        # Functions refer to their names: to ask for these as well takes no other look at the heap.
        names = [item.__name__ for item in wanted if type(item) is FunctionType]
        asked = (*wanted, *names)  # Python 3.13 takes the arguments of the call for a holder like any other
        found = [item for item in gc.get_referrers(*asked) if item is not asked and item is not wanted]
        for other in found:
            for one in wanted if type(other) is FunctionType and id(other) not in self._for else ():
                if type(one) is not FunctionType or _place_of(other) != _place_of(one):
                    continue
                if bare(other.__code__) == bare(one.__code__):  # the file may have more lines now
                    self._for[id(one)].earlier.append(ref(other))
        return [item for item in found if any(id(part) in self._for for part in gc.get_referents(item))]

    def _find_owners(self, items: list[Any]) -> None:
        """Note who refers to these holders, and to the closures and dictionaries that some of them are in."""
        for _ in range(2):  # for all at once: each look at the heap takes its time
            ids, asked, further = set(map(id, items)), tuple(items), []
            for owner in gc.get_referrers(*asked) if asked else ():
                if type(owner) is list or owner is asked:
                    continue  # of this search, or nothing that could be rebound
                for part in gc.get_referents(owner):
                    if id(part) in ids:
                        self._owners.setdefault(id(part), []).append(owner)
                        further += [owner] if type(part) in _INSIDE and type(owner) in (tuple, dict) else []
            items = further

    def _visit(self, holder: Any, owners: list[Any]) -> None:  # noqa: C901, PLR0912 -- a case for each kind
        """Rebind what a holder has of originals, or note that it has them."""
        kind, held = type(holder), gc.get_referents(holder)
        further = [item for owner in owners for item in self._owners.get(id(owner), ())]
        if any(_is_ours(_namespace(type(item)).get("__module__")) for item in (holder, *owners, *further)):
            return
        if issubclass(kind, dict):
            self._visit_dict(holder, owners)
        elif issubclass(kind, tuple) and owners:
            for owner in owners:
                if type(owner) is FunctionType and owner.__defaults__ is holder:
                    owner.__defaults__ = tuple(map(self._new, owner.__defaults__))
                elif _is_a(owner, _partial):
                    self._visit(owner, [])
                else:
                    self._note(held)
        elif issubclass(kind, _partial):
            function, arguments, *others = _partial.__reduce__(holder)[2]
            after = (self._new(function), tuple(map(self._new, arguments)), *others)
            _partial.__setstate__(holder, after)
            self._note(gc.get_referents(holder))  # in a slot of a class derived from it
        elif kind in (staticmethod, classmethod):
            kind.__init__(holder, self._new(holder.__func__))
        elif kind is CellType:
            if not any(type(item) is FunctionType and _is_replacement(item) for item in further):
                self._note(held)
        elif kind is FrameType or kind in _SUSPENDED:
            # A call of the original holds it in any case.
            codes = [original.__code__ for original, _ in self._pairs if type(original) is FunctionType]
            if not _is_over(holder) and not any(part is code for part in held for code in codes):
                self._note(held)
        elif kind is not FunctionType:  # its defaults, closure and attributes are holders themselves
            self._note(held)

    def _visit_dict(self, holder: dict[Any, Any], owners: list[Any]) -> None:
        cls: Any = None
        can_change = _is_of_module(holder)
        for owner in owners:
            kind = type(owner)
            if issubclass(kind, type) and _namespace(owner) is holder:
                cls = owner
            elif kind is FunctionType and owner.__dict__ is holder and _is_replacement(owner):
                return
            elif kind is FunctionType:  # the module of a function may be gone
                can_change |= owner.__globals__ is holder or owner.__kwdefaults__ is holder
            elif issubclass(kind, _partial):
                can_change |= _partial.__reduce__(owner)[2][2] is holder
            else:
                can_change |= issubclass(kind, ModuleType)
        over = bool(owners) and all(map(_is_over, owners))
        for key, value in [item for item in dict.items(holder) if id(item[1]) in self._for]:
            if cls is not None:
                type.__setattr__(cls, key, self._new(value))  # a metaclass is not asked
            elif can_change:
                dict.__setitem__(holder, key, self._new(value))
        # It is a key, a value that stays, or in a class derived from `dict` what else an object of that has.
        self._note(() if over else gc.get_referents(holder))

    def _look_at_weak(self, wanted: tuple[Any, ...]) -> None:
        """Rebind each `WeakMethod`. Whoever has another weak reference goes on with the original."""
        # By their ids: to ask a proxy what it stands for would call that.
        of = {id(reference): original for original in wanted for reference in getweakrefs(original)}
        asked = tuple(reference for original in wanted for reference in getweakrefs(original))
        method: Any = getattr(sys.modules.get("weakref"), "WeakMethod", ())
        for owner in gc.get_referrers(*asked) if asked else ():
            if owner is asked or _is_ours(_namespace(type(owner)).get("__module__")):
                continue
            for reference in gc.get_referents(owner):
                if id(reference) not in of:
                    continue
                if _is_a(owner, method):
                    fresh = ref(self._new(of[id(reference)]), reference.__callback__)
                    method._func_ref.__set__(owner, fresh)  # noqa: SLF001 -- by its slot: no code of a subclass
                else:
                    self._note([of[id(reference)]])

    def _look_at_calls(self) -> None:
        """Look at the local variables of running calls that the collector does not report.

        Before Python 3.13, reading them fills a dictionary that the frame keeps, and that would keep alive
        what the call lets go of later. So it is emptied again, unless the call itself has asked for its
        `locals()`, or a debugger is there, which writes the dictionary back.
        """
        tops = sys._current_frames()  # noqa: SLF001 -- there is no other way
        while tops:  # (frames in a list of one of these frames would never be released)
            frame: FrameType | None = tops.popitem()[1]
            while frame is not None:
                code = frame.f_code
                # The names of a module or a class are in a dictionary that the collector knows.
                if code.co_flags & 1 and not _is_ours(frame.f_globals.get("__name__")):
                    variables = frame.f_locals
                    self._note(value for name, value in variables.items() if name not in code.co_freevars)
                    traced = any((frame.f_trace, sys.gettrace(), sys.getprofile()))
                    # Three references are the frame, the variable here, and the argument.
                    if type(variables) is dict and not traced and sys.getrefcount(variables) <= 3:  # noqa: PLR2004
                        variables.clear()
                frame = frame.f_back

    def _new(self, value: Any) -> Any:
        """Return what takes the place of a value."""
        rebinding = self._for.get(id(value))
        if rebinding is None:
            return value
        rebinding.rebound = True
        return rebinding.replacement

    def _note(self, values: Iterable[object]) -> None:
        """Note the originals among these values: somebody has a reference to them that stays."""
        for value in values:
            if id(value) in self._for:
                self._for[id(value)].held = True


def _atexit_callbacks() -> list[object]:
    """Return the functions that `atexit` will call: it compares each with one that it is asked to forget."""
    found: list[object] = []
    unequal: Any = type("Unequal", (), {"__eq__": lambda _, other: found.append(other), "__hash__": None})
    with suppress(Exception):  # of a callback that refuses to be compared
        atexit.unregister(unequal())
    return found


def _is_over(item: object) -> bool:
    """Return whether an object is the frame of a call that calls nothing any more."""
    # Python 3.10 has what a suspended call refers to in its frame, and later ones in the generator.
    return type(item) is FrameType and not any(type(one) in _SUSPENDED for one in gc.get_referrers(item))


def _is_a(item: object, kind: Any) -> bool:
    """Return whether an object is of a class, whatever it says itself: proxies have a `__class__` to ask."""
    return issubclass(type(item), kind)


def _is_ours(module: object) -> bool:
    return type(module) is str and module.partition(".")[0] == "overlay"


def _is_replacement(function: FunctionType) -> bool:
    """Return whether a function is one of ours, or one that such a function is made of."""
    marked = ORIGINAL in function.__dict__ and not is_wrapper(function)
    return marked or _is_ours(function.__globals__.get("__name__"))


def _is_of_module(item: Any) -> bool:
    """Return whether an object is the dictionary of a module that `sys.modules` has."""
    name = dict.get(item, "__name__") if _is_a(item, dict) else None
    module = sys.modules.get(name) if type(name) is str else None
    return _is_a(module, ModuleType) and any(part is item for part in gc.get_referents(module))


def _namespace(cls: type) -> Any:
    """Return the dictionary of a class itself; its `__dict__` is a view of that."""
    return gc.get_referents(type.__dict__["__dict__"].__get__(cls))[0]
