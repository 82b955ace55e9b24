"""Who else holds the function that is being replaced?

`from x import f` before the patch leaves the original in another module, where the patch would silently do
nothing. Whoever holds it is found; references that can be rebound are, and the others are named.

It works in both directions: to take a patch out, the replacement is what is looked for. So no list is kept of
who was rebound: they may hold something else by then, and others have taken the replacement.
"""

from __future__ import annotations

import functools
import gc
from _weakref import getweakrefs, ref
from types import CellType, FrameType, FunctionType, MethodType, ModuleType

from overlay.aliases.frames import SUSPENDED, atexit_callbacks, local_variables, name_of_call, running
from overlay.aliases.rebinding import Rebinding, Swapped, another, parts, set_in_class, set_partial, state
from overlay.aliases.referrers import (
    WRAPPERS,
    Holders,
    Thawed,
    content,
    dict_of,
    is_a,
    is_ours,
    kind_of,
    module_of,
    name_of,
    namespace,
    owner_of_dict,
    slots_of,
)
from overlay.base.marks import ORIGINAL, is_wrapper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def rebind(pairs: list[tuple[object, object]], ignore: list[object]) -> list[Rebinding]:
    """Replace each original by its replacement wherever a reference to it can be rebound.

    If that is interrupted, what was rebound stays so, and the same with the pairs turned round takes it back.

    `pairs` are (original, replacement), either of which may be ours; `ignore` are containers of the caller's
    own that hold originals. One search serves all pairs.
    """
    rebindings = [Rebinding(replacement) for _, replacement in pairs]
    with Thawed():
        _Search(pairs, rebindings).run(ignore)
    for rebinding in rebindings:
        rebinding.shorten()
    return rebindings


def holders_of(functions: list[FunctionType], ignore: list[object]) -> list[list[str]]:
    """Return for each function who holds it. They are given the same function, which changes nothing."""
    found = rebind([(function, function) for function in functions], [*ignore, functions])
    return [[*rebinding.rebound, *rebinding.stale] for rebinding in found]


class _Search:
    """One search for all originals, and the changes that come of it."""

    def __init__(self, pairs: list[tuple[object, object]], rebindings: list[Rebinding]) -> None:
        self._pairs = pairs
        self._for: dict[int, Rebinding] = {}
        for (original, _), rebinding in zip(pairs, rebindings, strict=True):
            self._for.setdefault(id(original), rebinding)
        self._holders: Holders
        self._done: set[int] = set()
        #: Whether there is a cell that no function is known to own: a variable of a running call.
        self._loose_cell = False

    def run(self, ignore: list[object]) -> None:
        """Find the holders, and deal with each."""
        wanted = tuple(original for original, _ in self._pairs)
        self._holders = Holders(wanted)
        for original, _ in self._pairs:
            if type(original) is FunctionType:
                self._for[id(original)].earlier = [ref(other) for other in self._holders.earlier(original)]
        members = [member for pair in self._pairs for member in pair]
        own = [self._pairs, *self._pairs, wanted, ignore, *ignore, *members]
        own += [part for member in members for part in _inside(member)]
        skip = set(map(id, own)) | {id(inside) for item in ignore if (inside := dict_of(item)) is not None}
        found = [item for key, item in self._holders.found.items() if key not in skip]
        weak = [reference for original in wanted for reference in getweakrefs(original)]
        self._holders.learn([item for item in found if is_a(item, _OWNED) and module_of(item) is None] + weak)
        # An object first: its dictionary may be one of the holders as well, and is dealt with by that.
        for holder in sorted(found, key=lambda item: is_a(item, dict)):
            self._visit(holder)
        for reference in weak:
            self._weak(reference)
        if self._holders.more or self._loose_cell:
            for frame in running():
                self._variables(frame, "running", free=False)
        for callback in atexit_callbacks():
            self._stale(callback, "atexit")

    def _visit(self, holder: object) -> None:
        if id(holder) in self._done or _is_of_ours(holder):
            return
        self._done.add(id(holder))
        visit = next((visit for kind, visit in _VISITS if is_a(holder, kind)), _Search._object)
        try:
            visit(self, holder)
        except Exception as error:  # noqa: BLE001 -- one odd object must not keep the patch from all others
            for value in gc.get_referents(holder):
                self._stale(value, f"a {kind_of(holder)} that cannot be changed ({type(error).__name__})")

    def _stale(self, value: object, what: str) -> None:
        rebinding = self._for.get(id(value))
        if rebinding is not None:
            rebinding.stale.append(what)

    def _rebound(self, values: tuple[Any, ...], what: str) -> None:
        for key in {id(value) for value in values if id(value) in self._for}:
            self._for[key].rebound.append(what)

    def _new(self, value: Any) -> Any:
        rebinding = self._for.get(id(value))
        return value if rebinding is None else rebinding.replacement

    # -- what can be rebound -------------------------------------------------------------------------

    def _dict(self, holder: dict[Any, Any]) -> None:
        for key in list(dict.keys(holder)):
            self._stale(key, "a key of a dict")
        hits = [(key, value) for key, value in list(dict.items(holder)) if id(value) in self._for]
        owner = owner_of_dict(holder, self._holders.owners(holder)) if hits else None
        for key, value in hits:
            name = key if type(key) is str else f"a {kind_of(key)}"
            if owner is None:
                self._stale(value, f"the entry {name!r} of a dict")
            elif is_a(owner, type):
                self._class(owner, key, value, self._new(value))
            elif is_a(owner, ModuleType) or (type(owner) is FunctionType and owner.__globals__ is holder):
                self._item(holder, key, f"{holder.get('__name__')}:{name}")
            elif is_a(owner, functools.partial):
                self._item(holder, key, f"the argument {name} of a functools.partial")
            elif type(owner) is FunctionType and owner.__kwdefaults__ is holder:
                self._item(holder, key, f"the default of {name} in {name_of(owner)}")
            elif type(owner) is FunctionType and not _is_replacement(owner):
                self._stale(value, f"attribute {name} of the function {name_of(owner)}")
            elif not is_a(owner, (FrameType, FunctionType)) and not _is_of_ours(owner):
                self._stale(value, f"attribute {name} of a {kind_of(owner)}")

    def _item(self, holder: dict[Any, Any], key: Any, what: str) -> None:
        value = dict.__getitem__(holder, key)
        dict.__setitem__(holder, key, self._new(value))
        self._rebound((value,), what)

    def _class(self, owner: type, key: str, value: Any, new: object) -> None:
        """Rebind an attribute of a class: the original itself, or what the class keeps it in."""
        what = f"{name_of(owner)}.{key}"
        try:
            set_in_class(owner, key, new)
        except Exception as error:  # noqa: BLE001 -- a metaclass may do anything
            for part in parts(value):
                self._stale(part, f"{what}, which cannot be set ({type(error).__name__})")
        else:
            self._rebound(parts(value), what)
            if type(value) in WRAPPERS and new is not value and id(value) not in self._for:
                first = next(part for part in parts(value) if id(part) in self._for)
                self._for[id(first)].swapped.append(Swapped(value, new))

    def _wrapper(self, holder: Any) -> None:
        """Rebind a static method, class method or property: another one takes its place in the class."""
        if type(holder) not in WRAPPERS:  # of a class derived from one, which may need more to be made
            self._object(holder)
            return
        made = another(holder, self._new)
        known = self._is_kept_by_us(holder)
        for space in self._holders.owners(holder):
            owner: Any = owner_of_dict(space, self._holders.owners(space)) if is_a(space, dict) else None
            if is_a(owner, type):
                known = True
                for key in [key for key, value in list(space.items()) if value is holder]:
                    self._class(owner, key, holder, made)
        for part in parts(holder) if not known else ():
            self._stale(part, f"a {kind_of(holder)}")

    def _tuple(self, holder: tuple[Any, ...]) -> None:
        """Rebind a tuple that is the defaults of a function or the arguments of a partial."""
        known = False
        for owner in self._holders.owners(holder):
            if type(owner) is FunctionType and owner.__defaults__ is holder:
                owner.__defaults__ = tuple(map(self._new, holder))
                self._rebound(holder, f"a default of {name_of(owner)}")
                known = True
            elif is_a(owner, functools.partial) and (id(owner) in self._done or state(owner)[1] is holder):
                self._visit(owner)
                known = True
        if not known:
            self._items(holder)

    def _partial(self, holder: functools.partial[Any]) -> None:
        function, arguments, *_ = state(holder)
        if not any(id(value) in self._for for value in (function, *arguments)):
            self._object(holder)  # in a slot of a class derived from it
            return
        after = (self._new(function), tuple(map(self._new, arguments)))
        set_partial(holder, *after)
        self._rebound((function,), "a functools.partial")
        self._rebound(arguments, "an argument of a functools.partial")

    # -- what can only be named ----------------------------------------------------------------------

    def _cell(self, holder: CellType) -> None:
        value = content(holder)
        if id(holder) in self._holders.unasked:
            self._stale(value, "the closure of a function")
            return
        owners = self._holders.owners(holder)
        self._loose_cell |= not owners
        for owner in owners:
            if is_a(owner, (*SUSPENDED, FrameType)):
                self._visit(owner)
            elif type(owner) is tuple:
                for function in self._holders.owners(owner):
                    if (
                        type(function) is FunctionType
                        and function.__closure__ is owner
                        and not _is_replacement(function)
                    ):
                        self._stale(value, f"the closure of {name_of(function)}")

    def _method(self, holder: MethodType) -> None:
        for value in (holder.__func__, holder.__self__):
            self._stale(value, f"a bound method of {kind_of(holder.__self__)}")

    def _items(self, holder: Any) -> None:
        for value in gc.get_referents(holder):
            self._stale(value, f"an item of a {kind_of(holder)}")

    def _object(self, holder: object) -> None:
        """Name the attributes that hold an original, or else the object."""
        inside = dict_of(holder) or {}
        self._done.add(id(inside))
        attributes = [*dict.items(inside), *slots_of(holder)]
        hits = [(name, value) for name, value in attributes if id(value) in self._for]
        for name, value in hits:
            self._stale(value, f"attribute {name} of a {kind_of(holder)}")
        for value in gc.get_referents(holder) if not hits else ():
            self._stale(value, f"a {kind_of(holder)}")

    def _weak(self, reference: object) -> None:
        """Name a weak reference: a table by functions does not know the replacement."""
        if any(is_a(owner, (dict, set)) for owner in self._holders.owners(reference)):
            self._stale(reference(), "a weak reference in a dict or a set")  # type: ignore[operator]

    def _suspended(self, holder: Any) -> None:
        frame = getattr(holder, SUSPENDED[type(holder)])
        if frame is not None:
            self._variables(frame, "suspended" if frame.f_back is None else "running", free=True)

    def _frame(self, holder: FrameType) -> None:
        """Name the variables of a suspended call; what has come to an end calls nothing any more."""
        for owner in self._holders.owners(holder):
            if type(owner) in SUSPENDED:
                self._visit(owner)

    def _variables(self, frame: FrameType, what_now: str, *, free: bool) -> None:
        for name, key in local_variables(frame, self._holders.ids, free=free):
            what = f"a local variable {name} of {name_of_call(frame)}, which is {what_now}"
            if what not in self._for[key].stale:
                self._for[key].stale.append(what)

    def _is_kept_by_us(self, holder: object) -> bool:
        """Return whether it is what another site, or an earlier life of this one, keeps to put it back."""
        owners = self._holders.owners(holder)
        return any(_is_of_ours(item) for owner in owners for item in (owner, *self._holders.owners(owner)))

    def _nothing(self, holder: object) -> None:
        """Pass over a function: what it holds are its defaults, its closure and its dictionary."""


_VISITS: tuple[tuple[Any, Any], ...] = (
    (dict, _Search._dict),  # noqa: SLF001
    (tuple, _Search._tuple),  # noqa: SLF001
    (functools.partial, _Search._partial),  # noqa: SLF001
    (WRAPPERS, _Search._wrapper),  # noqa: SLF001
    (CellType, _Search._cell),  # noqa: SLF001
    (MethodType, _Search._method),  # noqa: SLF001
    ((list, set, frozenset), _Search._items),  # noqa: SLF001
    (tuple(SUSPENDED), _Search._suspended),  # noqa: SLF001
    (FrameType, _Search._frame),  # noqa: SLF001
    (FunctionType, _Search._nothing),  # noqa: SLF001
)

#: Holders that matter by whose they are.
_OWNED = (dict, tuple, CellType, FrameType, *WRAPPERS)


def _is_of_ours(item: object) -> bool:
    return is_ours(namespace(type(item)).get("__module__"))


def _is_replacement(function: FunctionType) -> bool:
    """Return whether a function is one of ours, or one that such a function is made of."""
    marked = ORIGINAL in function.__dict__ and not is_wrapper(function)
    return marked or is_ours(function.__globals__.get("__name__"))


def _inside(member: Any) -> list[object]:
    """Return what holds the original inside our own replacement, or a function that it is made of.

    Of both members of a pair: what is reached only by way of the one or the other is no alias.
    """
    found: list[object] = []
    todo = [member.__func__ if type(member) in (staticmethod, classmethod) else member]
    for function in todo:  # it grows by the functions in the closures
        if type(function) is FunctionType:
            cells = [cell for cell in function.__closure__ or () if not any(cell is part for part in found)]
            found += [function.__dict__, *cells]
            inner = [value for value in map(content, cells) if type(value) is FunctionType]
            todo += [value for value in inner if value.__globals__ is function.__globals__]
    return found
