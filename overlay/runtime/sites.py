"""Puts the replacements of one patch in place in one module, and takes them out again.

A replacement is a plain function under the name of its site: `torch.compile`, `torch.jit.script` and pickle
would silently bypass a transparent proxy.

By the time a site is looked at, its source has been recognised. But the file may have changed since it was
imported, and somebody may have put something else in place. So the code that would run is compared with what
the source compiles to.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from inspect import (
    CO_OPTIMIZED,
    Parameter,
    isasyncgenfunction,
    iscoroutinefunction,
    isgeneratorfunction,
    signature,
)
from itertools import islice
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

from overlay.errors import OverlayError, SourceError
from overlay.patch import Replacement
from overlay.runtime.search import ORIGINAL, OWNER, are_held, is_wrapper, rebind, sole_names
from overlay.runtime.unpickled import mark
from overlay.source.shape import split_site
from overlay.source.source import Tree, bare

#: Attributes that a replacement does not take over: through them `torch.jit.script` and `inspect` would find
#: the original.
_NOT_COPIED = frozenset({"__wrapped__", ORIGINAL, OWNER})
#: Names of a module that is run: by the interpreter, and again in a process that `multiprocessing` spawns.
_RUN = ("__main__", "__mp_main__")
#: The most objects that are looked at behind one that somebody put in the place of ours.
_MOST_BEHIND, _MOST_PARTS = 200, 1000
#: The flag of a class that is not built in: what its instances have is asked for by name.
_HEAP_TYPE = 1 << 9


class ConflictError(OverlayError):
    """Someone else's object stands at a site."""


def run_as(module: object) -> str:
    """Return the name of a module that is run instead of imported, empty for any other."""
    try:  # without asking a stranger's `__getattr__`, or that of a lazy module
        name = object.__getattribute__(module, "__dict__").get("__name__")
    except AttributeError:
        return ""
    return name if name in _RUN else ""


def function_of(raw: object) -> Any:
    """Return the function behind a raw class or module attribute."""
    # By its type: a transparent proxy says that it is an instance of one.
    return raw.__func__ if issubclass(type(raw), (staticmethod, classmethod)) else raw  # type: ignore[attr-defined]


def current(module: object, site: str, *, inherited: bool = False) -> tuple[Any, object]:
    """Return the object that holds a site and the raw value there now, `None` if it has none of its own.

    `inherited`: a class may have it from another.
    """
    parent: Any = module
    *path, name = split_site(site)[1].split(".")
    for step in path:
        parent = _own(_owner(parent, step) if inherited else parent, step)
    parent = _owner(parent, name) if inherited else parent
    return parent, _own(parent, name)


def _owner(parent: Any, name: str) -> Any:
    """Return the class from which a class has a name, or what is given."""
    bases = parent.__mro__ if isinstance(parent, type) else ()
    return next((cls for cls in bases if name in vars(cls)), parent)


def _own(parent: object, name: str) -> Any:
    """Return what an object itself has under a name. A stranger's `__getattr__` is not asked."""
    try:
        return object.__getattribute__(parent, "__dict__").get(name)
    except AttributeError:
        # The dictionary of a class is no instance attribute.
        return vars(parent).get(name) if isinstance(parent, type) else None


def upstreams(module: object, site: str) -> Any:
    """Return what stands at a site without our replacements: the function that the first of them got."""
    found = function_of(current(module, site, inherited=True)[1])
    while type(found) is FunctionType and OWNER in vars(found) and not is_wrapper(found):
        found = vars(found).get(ORIGINAL)
    return found


#: The code of a function, and of each that it wraps by `functools.wraps`.
Chain = tuple[CodeType, ...]


def chains_at(module: object, site: str, tree: Tree, *, read: bool) -> list[Chain]:
    """Return the code that a function has at a site by its source, none for anything but a function.

    `tree`: what was decided on. What a decorator made, or one of two definitions, is believed to be right
    unless it wraps another function than the source has. Unless `read`, so is a function that says it is from
    there.
    """
    found = upstreams(module, site)
    there = [chain for chain in [chain_of(found)] if chain]
    if there and not read and not is_wrapper(found):
        own = (found.__module__, found.__code__.co_filename, found.__qualname__)
        home, name = split_site(site)
        if own == (getattr(module, "__name__", None), tree.file(home), name):
            return there
    with suppress(SourceError):
        codes = [code for code in tree.code(tree.chain(site)[-1]) if code.co_flags & CO_OPTIMIZED]
        by_source: list[Chain] = [(_unpadded(code),) for code in codes]  # the rest are classes
        if by_source and not tree.obstacle(site):
            return by_source
        if by_source and there and len(there[0]) > 1 and there[0][-1:] not in by_source:
            return by_source
    return there


def chain_of(function: Any) -> Chain:
    """Return the code of a function, and of what it wraps; nothing of anything else."""
    chain: list[CodeType] = []
    while type(function) is FunctionType and len(chain) < _MOST_BEHIND:
        chain.append(_unpadded(function.__code__))
        function = vars(function).get("__wrapped__")
    return tuple(chain)


def has_chain(function: object, chains: Sequence[Chain]) -> bool:
    """Return whether this is a function with one of these chains, wherever it is from."""
    return chain_of(function) in chains


def _unpadded(code: CodeType) -> CodeType:
    """Return code without its location, and without what line_profiler adds to tell it from others."""
    from opcode import opmap

    steps, nothing = code.co_code, bytes([opmap["NOP"], 0])
    while steps.endswith(nothing):
        steps = steps[: -len(nothing)]
    return bare(code.replace(co_code=steps))


def describe(value: object) -> str:
    """Say what stands at a site, so that a person finds it."""
    function = function_of(value)
    if function is None:
        return "something that does not have it"
    if type(function) is not FunctionType:
        return f"a {type(value).__qualname__}"
    owner = function.__dict__.get(OWNER)
    if isinstance(owner, str) and not is_wrapper(function):
        return f"{owner} of overlay"
    code = function.__code__
    name = getattr(code, "co_qualname", function.__qualname__)
    return f"{function.__module__}:{name}, {code.co_filename}:{code.co_firstlineno}"


def holds(value: object, is_wanted: Callable[[object], bool]) -> bool:
    """Return whether an object holds what is wanted where its code looks for it, as a wrapper does.

    Of modules, classes and instances it is asked only for what is named by the code that has them.
    """
    seen = set[tuple[object, ...]]()
    waiting: list[tuple[Any, frozenset[str]]] = [(value, frozenset())]
    for given, names in waiting:  # it grows
        one = function_of(given)
        if is_wanted(one):
            return True
        key = (id(one.__func__), id(one.__self__)) if type(one) is MethodType else (id(one), names)
        if key not in seen and len(seen) < _MOST_BEHIND:
            seen.add(key)
            waiting += islice(_parts(one, names), _MOST_PARTS)
    return False


def _parts(one: Any, names: frozenset[str]) -> Iterator[tuple[Any, frozenset[str]]]:
    """Yield what an object may call, with the attributes that code asks of that."""
    kind = type(one)
    if kind is FunctionType:
        asked, attributes = _asked(one.__code__)
        found = [one.__globals__.get(name, sys.modules.get(name)) for name in asked]
        # A relative import names a module below this package or one above, or the package itself.
        package = str(one.__globals__.get("__package__") or "").split(".")
        inside = [".".join(package[: end + 1]) for end in range(len(package))]
        found += [sys.modules.get(f"{above}.{name}".rstrip(".")) for above in inside for name in asked]
        parts = gc.get_referents(*one.__closure__ or (), one.__defaults__, one.__kwdefaults__)
        yield from ((part, attributes) for part in (*found, *parts))
        # What `functools.wraps` gave it need not be called. It may be where the code hands on the wrapper.
        hands_on = any(part is one for part in (*found, *parts))
        yield from ((vars(one).get(name), names) for name in (*names, *["__wrapped__"] * hands_on))
    elif kind is MethodType:
        yield one.__func__, frozenset()
        if type(one.__func__) is FunctionType:
            yield from _attributes(one.__self__, _asked(one.__func__.__code__)[1])
    elif issubclass(kind, dict):
        yield from ((part, names) for part in dict.values(one))
    elif issubclass(kind, (type, ModuleType)):
        yield from _attributes(one, names)
    else:
        call = _own(next((cls for cls in kind.__mro__ if "__call__" in vars(cls)), kind), "__call__")
        if type(call) is FunctionType:
            yield MethodType(call, one), frozenset()
        elif call is not None or not kind.__flags__ & _HEAP_TYPE:  # it is of C, or a list
            yield from ((part, names) for part in gc.get_referents(one) if part is not kind)
        yield from _attributes(one, names)


def _attributes(one: Any, names: frozenset[str]) -> Iterator[tuple[Any, frozenset[str]]]:
    """Yield what an object or its class has by some names."""
    owners = type.mro(one) if issubclass(type(one), type) else (one, *type(one).__mro__)
    for owner in owners:
        found = (_own(owner, name) for name in names)
        for raw in (each.fget if type(each) is property else each for each in found):
            if type(raw) is MemberDescriptorType:
                with suppress(AttributeError, TypeError):
                    yield raw.__get__(one), names
            elif type(raw) is classmethod or (type(raw) is FunctionType and owner is not one):
                yield MethodType(function_of(raw), one), names
            elif raw is not None:
                yield raw, names


def _asked(code: CodeType) -> tuple[set[str], frozenset[str]]:
    """Return the globals and modules that code asks for by name, and the attributes."""
    from dis import get_instructions, hasname

    asked, attributes, codes = set[str](), set[str](), [code]
    for each in codes:  # it grows by functions inside
        codes += [part for part in each.co_consts if type(part) is CodeType]
        for step in get_instructions(each):
            if step.opcode in hasname:
                by_name = step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "IMPORT_NAME")
                (asked if by_name else attributes).add(step.argval)
    return asked, frozenset(attributes)


class InstalledSite:
    """One site that was replaced, with all that is needed to take the replacement out again."""

    def __init__(self, site: str, module: object, before: object, after: object) -> None:
        self.site = site
        self.module = module
        self.parent = current(module, site)[0]
        self.name = split_site(site)[1].rpartition(".")[2]
        #: What stood there, `None` for a name that the patch adds.
        self.before = before
        self.after = after
        self._code = self._code_now()
        #: When a holder of the original took it ("earlier"), empty if nobody holds it any more.
        self.stale = ""
        #: Whether the module has been executed again since, so that this site is past.
        self.past = False

    @property
    def in_place(self) -> bool:
        """Whether the site still holds what was put there."""
        return vars(self.parent).get(self.name) is self.after

    def adopt(self, raw: object) -> bool:
        """Take a copy of the replacement for it. Return whether this is one.

        An object of a class that is pickled by value brings one when it comes back, and puts it there.
        """
        mine, other = function_of(self.after), function_of(raw)
        if type(raw) is not type(self.after) or type(other) is not FunctionType or is_wrapper(other):
            return False
        marks = [vars(function).get(OWNER) for function in (mine, other)]
        same = len({(mark, getattr(mark, "site", "")) for mark in marks}) == 1
        if marks[0] is None or not same or chain_of(mine) != chain_of(other):
            return False
        self.after, self._code = raw, self._code_now()
        return True

    @property
    def was_edited(self) -> bool:
        """Whether somebody has given the replacement other code or defaults, as `%autoreload` of IPython."""
        return self._code_now() != self._code

    def _code_now(self) -> tuple[object, ...]:
        function = function_of(self.after)
        defaults = (getattr(function, name, None) for name in ("__defaults__", "__kwdefaults__"))
        # Of the original, the code alone: a default that is another original is rebound.
        return (chain_of(function), chain_of(function_of(self.before)), *defaults)

    @property
    def restored(self) -> bool:
        """Whether the site holds again what stood there before."""
        return vars(self.parent).get(self.name) is self.before

    @property
    def is_definition(self) -> bool:
        """Whether the function is defined here. Then references to it elsewhere are rebound too.

        If the site is a name that its module imported, they are not: the patch asked for that name alone, and
        the function stays what it is where it is defined, and wherever else it is used.
        """
        home: object = getattr(function_of(self.before), "__module__", None)
        return home == _home(self.module, self.site)

    def pairs(self) -> list[tuple[object, object]]:
        """Return (before, after): the functions, and if there are any the static or class methods around."""
        before, after = function_of(self.before), function_of(self.after)
        return [(before, after), *([] if before is self.before else [(self.before, self.after)])]


def _home(module: object, site: str) -> str:
    """Return what the module of a site is called where it runs. Its functions are pickled by that name."""
    return run_as(module) or split_site(site)[0]


def prepare(owner: str, module: ModuleType, replacement: Replacement, tree: Tree) -> InstalledSite:
    """Look at a site of `owner` in `module` and build its replacement, without changing anything.

    Raises `OverlayError`, or whatever a factory raised.
    """
    site, name = replacement.site, split_site(replacement.site)[1]
    raw = current(module, site)[1]
    original = function_of(raw)
    if replacement.new:
        if "." in name or name in vars(module):
            raise ConflictError(f"{site} is there already, or is no name of a module")
    elif raw is None:
        what = "is inherited, or missing in the imported module, which may not be executed to its end"
        raise OverlayError(f"{site} {what}: its source defines it")
    else:
        _check_original(module, site, original, tree)
    made = replacement.make(original, module)
    if type(made) is not FunctionType or made is original or getattr(made, OWNER, None) is not None:
        raise OverlayError(f"the factory of {site} returned {made!r}, not a plain function of its own")
    if "<locals>" not in made.__qualname__:  # of a module, where it is to stay what it is
        made = _copy(made)
    made.__module__, made.__qualname__ = _home(module, site), name
    made.__name__ = name.rpartition(".")[2]
    # Code of its own: `torch.compile` counts how often it compiles each, and profilers count calls.
    made.__code__ = made.__code__.replace(co_name=made.__name__)
    if original is None:
        setattr(made, OWNER, owner)
        return InstalledSite(site, module, None, made)
    _check_parameters(replacement, original, made)
    _dress(owner, made, original, site)
    kind: Any = type(raw)
    return InstalledSite(site, module, raw, made if raw is original else kind(made))


def _copy(function: FunctionType) -> FunctionType:
    code, space, closure = function.__code__, function.__globals__, function.__closure__
    made = FunctionType(code, space, function.__name__, function.__defaults__, closure)
    made.__kwdefaults__ = function.__kwdefaults__
    made.__dict__.update(vars(function))
    return made


def _check_original(module: ModuleType, site: str, original: object, tree: Tree) -> None:
    """Raise `ConflictError` unless the live object is the function that the source defines."""
    if type(original) is not FunctionType:  # a transparent proxy says that it is an instance of one
        what = f"is a {type(original).__name__} in the imported module, not a plain function"
        raise ConflictError(f"{site} {what}")
    if getattr(original, OWNER, None) is not None:
        raise ConflictError(f"{site} is already replaced by {describe(original)}")
    origin = tree.chain(site)[-1]
    home = split_site(origin)[0]
    if home == split_site(site)[0]:
        home = _home(module, site)
    known = bare(original.__code__) in tree.code(origin)
    if run_as(module) and original.__module__ == home and not known:
        raise ConflictError(f"{site} is another one in the script that is run ({describe(original)})")
    if original.__module__ != home or not known:
        raise ConflictError(
            f"{site} was replaced by someone else, or its file has changed since it was imported "
            f"({describe(original)}); enable overlay first"
        )


def _check_parameters(
    replacement: Replacement, original: Callable[..., Any], made: Callable[..., Any]
) -> None:
    def shape(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
        return [(p.name, p.kind, p.default) for p in signature(function).parameters.values()]

    added = [part for part in shape(made) if part[0] in replacement.adds]
    optional = all(
        kind is Parameter.KEYWORD_ONLY and default is not Parameter.empty for _, kind, default in added
    )
    own = [part for part in shape(made) if part not in added]
    about = f"the replacement of {replacement.site}"
    if shape(original) != own or len(added) != len(replacement.adds) or not optional:
        more = f", with {', '.join(replacement.adds)} added as optional keywords" if replacement.adds else ""
        raise OverlayError(f"{about} takes {signature(made)}, the original {signature(original)}{more}")
    theirs = signature(original).parameters
    # What `functools.wraps` and `around` made has the signature of the original, and reads other parameters.
    for function in (made, getattr(replacement.make, "__wrapped__", made)):
        for name, mine in signature(function, follow_wrapped=False).parameters.items():
            default = theirs[name].default if name in theirs else mine.default
            if mine.default is not Parameter.empty and (default,) != (mine.default,):
                raise OverlayError(f"{about} has {name}={mine.default!r}, the original {name}={default!r}")
    for kind in (isgeneratorfunction, iscoroutinefunction, isasyncgenfunction):
        if kind(original) != kind(made):
            raise OverlayError(f"{about} and the original differ in what {kind.__name__} says")


def _dress(owner: str, made: FunctionType, original: Any, site: str) -> None:
    """Give a replacement the docstring, annotations and attributes of the original, and our marks."""
    made.__doc__ = original.__doc__
    made.__annotations__ = dict(original.__annotations__)
    # No comprehension: it has a cell, and would be one more who holds the original.
    for name in made.__annotations__:
        made.__annotations__[name] = _meant(made.__annotations__[name], original)
    if made.__dict__.pop("__wrapped__", None) is not None:  # through it, `functools.wraps` gave the signature
        made.__signature__ = signature(original)  # type: ignore[attr-defined]
    made.__dict__.update({key: value for key, value in vars(original).items() if key not in _NOT_COPIED})
    setattr(made, ORIGINAL, original)
    setattr(made, OWNER, mark(owner, site))


def _meant(annotation: Any, function: FunctionType) -> Any:
    """Return what an annotation that is a string means in its module: the replacement lies in another one."""
    with suppress(Exception):  # a name that only type checkers import, say
        return eval(annotation, function.__globals__) if isinstance(annotation, str) else annotation  # noqa: S307
    return annotation


def put(sites: Sequence[InstalledSite], *, first: bool = False) -> None:
    """Put prepared sites of one module in place and rebind their aliases. On a failure all is put back.

    `first`: the module was executed just now, and never before. Then no function of an earlier import is
    anywhere, and a site to which nobody has another reference needs no search.
    """
    done: list[InstalledSite] = []
    try:
        held = []
        for site in sites:
            if not site.restored:
                what = f"{site.site} was replaced by someone else at this very moment"
                raise ConflictError(what)  # noqa: TRY301 -- what was put in place before it is taken out below
            names = sole_names(site.parent, site.name, function_of(site.after)) if first else []
            if site.is_definition and not names:
                held.append(site)
            done.append(site)
            setattr(site.parent, site.name, site.after)
            for name in names if site.is_definition else ():
                setattr(site.parent, name, site.after)
        _rebind_aliases(held)
    except BaseException:
        take_out(done)
        raise


def _rebind_aliases(sites: Sequence[InstalledSite]) -> None:
    """Give the replacement to everybody who holds the original, or note that somebody cannot be given it."""
    # Not as (site, pair): the search would take such a tuple for somebody who holds the original.
    found = rebind([pair for site in sites for pair in site.pairs()])
    if any(rebinding.earlier for rebinding in found):
        gc.collect()  # until then a class that nobody holds lives on, and its functions with it
    owners = [site for site in sites for _ in site.pairs()]
    for site, rebinding in zip(owners, found, strict=True):
        if rebinding.held:
            site.stale = "earlier"
        # What an earlier import has made is not rebound: it may belong to a module object with its own state.
        elif are_held(rebinding.earlier):
            site.stale = "from an earlier import of its module"


def look_again(sites: Sequence[InstalledSite]) -> bool:
    """Look whether somebody still holds originals that were held. Return whether any was."""
    stale = [site for site in sites if site.stale and site.in_place and not site.past]
    for site in stale:
        site.stale = ""
    _rebind_aliases(stale)
    return bool(stale)


def take_out(sites: Sequence[InstalledSite]) -> list[str]:
    """Put the originals back, the very objects, also in references that were taken since.

    Returns what could not be: sites that somebody else replaced on top, references that cannot be rebound.
    """
    left: list[str] = []
    for site in reversed(sites):
        if site.in_place:
            if site.before is None:
                delattr(site.parent, site.name)
            else:
                setattr(site.parent, site.name, site.before)
        elif not site.past and not site.restored:  # an interrupted call may have restored it
            left.append(f"{site.site}: somebody replaced it since")
    # A name that the patch added has nothing that could take its place.
    found = rebind([(after, before or after) for site in sites for before, after in site.pairs()])
    owners = [site for site in sites for _ in site.pairs()]
    for site, rebinding in zip(owners, found, strict=True):
        if rebinding.held or (site.before is None and rebinding.rebound):
            left.append(f"{site.site}: something still holds its replacement")
    return left
