"""Installing the sites of one patch in one module, and taking sites out again.

Plain functions only. A transparent proxy would be skipped by `torch.compile`, by `torch.jit.script` and by
pickle, without a word, so the replacement is a function of its own that carries the name of its site.
"""

from __future__ import annotations

import gc
from types import FunctionType

from overlay.errors import OverlayError
from overlay.model.marks import ORIGINAL, OWNER
from overlay.model.record import TYPE_CHECKING
from overlay.runtime.alone import sole_names
from overlay.runtime.live_site import ConflictError, check_original, function_of, kind_of, resolve, run_as
from overlay.runtime.search import holders_of, rebind
from overlay.runtime.unpickled import mark
from overlay.source.shape import split_site

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

    from overlay.patch import Replacement
    from overlay.source.source import Tree

#: Of what a function carries with it, what a replacement must not take over: by it `torch.jit.script` and
#: `inspect` find their way back to the original.
_NOT_COPIED = frozenset({"__wrapped__", ORIGINAL, OWNER})

#: What stands at a site where nothing does.
_NOTHING = object()


class Installed:
    """One site that was replaced, with all that is needed to take the replacement out again."""

    def __init__(  # noqa: PLR0913, PLR0917 -- where it is, and what was put there
        self, site: str, module: object, parent: Any, name: str, before: object, after: object
    ) -> None:
        self.site = site
        self.module = module
        self.parent = parent
        self.name = name
        self.before = before
        self.after = after
        self.rebound: tuple[str, ...] = ()
        self.stale: tuple[str, ...] = ()
        #: Whether the module has been executed again since, so that this site is history.
        self.past = False

    @property
    def in_place(self) -> bool:
        """Whether the site still holds what was put there."""
        return vars(self.parent).get(self.name) is self.after

    @property
    def restored(self) -> bool:
        """Whether the site holds again what stood there before."""
        return vars(self.parent).get(self.name, _NOTHING) is self.before

    @property
    def searched(self) -> bool:
        """Whether references elsewhere mean this site.

        If the site is a name that its module imported, that name alone was asked for: where the function is
        defined, and wherever else it is used, it stays what it is. Nobody has a reference to nothing.
        """
        if self.before is _NOTHING:
            return False
        home: object = function_of(self.before).__module__
        return home == _home(self.module, self.site)

    def pairs(self) -> list[tuple[object, object]]:
        """Return what stood here, and what does now: the functions, and a static method around each."""
        before, after = function_of(self.before), function_of(self.after)
        return [(before, after), *([] if before is self.before else [(self.before, self.after)])]


def prepare(
    owner: str, module: ModuleType, replacements: Sequence[Replacement], tree: Tree
) -> list[Installed]:
    """Look at every site of `owner` in `module` and build its replacement, without changing anything.

    Raises `OverlayError`, or whatever a factory raised.
    """
    return [_prepare(owner, module, replacement, tree) for replacement in replacements]


def put(sites: Sequence[Installed], *, first: bool = False) -> None:
    """Put prepared sites in place and rebind their aliases. On any failure everything is put back.

    Args:
        sites: Of one module.
        first: Whether the module was executed just now, and never before: then no function of an earlier
            import is anywhere, and a site to which nobody has another reference needs no search.

    """
    done: list[Installed] = []
    try:
        held = []
        for site in sites:
            if not site.restored:
                raise ConflictError(  # noqa: TRY301 -- what was put in place before it is taken out below
                    f"{site.site} was replaced by someone else at this very moment"
                )
            names = sole_names(site.parent, site.name, function_of(site.after)) if first else []
            if site.searched and not names:
                held.append(site)
            done.append(site)
            setattr(site.parent, site.name, site.after)
            for name in names if site.searched else ():
                if name != site.name:
                    setattr(site.parent, name, site.after)
                    site.rebound += (f"{split_site(site.site)[0]}:{name}",)
        _rebind_aliases(held)
    except BaseException:
        take_out(done)
        raise


def take_out(sites: Sequence[Installed]) -> list[str]:
    """Put the originals back, the very objects, also in references that were taken since.

    Returns what could not be: sites that somebody else replaced on top, references that cannot be rebound.
    """
    left: list[str] = []
    for site in reversed(sites):
        if site.in_place:
            if site.before is _NOTHING:
                delattr(site.parent, site.name)
            else:
                setattr(site.parent, site.name, site.before)
        elif not site.past and not site.restored:  # an interrupted call got as far as that
            left.append(f"{site.site}: somebody replaced it since")
    searched = [site for site in sites if site.searched]
    pairs = [(after, before) for site in searched for before, after in site.pairs()]
    if pairs:
        owners = [site for site in searched for _ in site.pairs()]
        for site, rebinding in zip(owners, rebind(pairs), strict=True):
            left += [f"{site.site}: its replacement is still held by {holder}" for holder in rebinding.stale]
    return left


def _rebind_aliases(sites: Sequence[Installed]) -> None:
    """Give the replacement to everybody who took the original before, or note who could not be given it."""
    pairs = [pair for site in sites for pair in site.pairs()]
    if not pairs:
        return
    owners = [site for site in sites for _ in site.pairs()]
    found = rebind(pairs)
    if any(rebinding.earlier for rebinding in found):
        gc.collect()  # until then a class that nobody has any more lives on, and its functions with it
    for site, rebinding in zip(owners, found, strict=True):
        site.rebound += tuple(rebinding.rebound)
        # What an earlier import has made is not rebound: it may belong to a module object with its own state.
        earlier = [f"{name} (of an earlier import of the module)" for name in holders_of(rebinding.earlier)]
        site.stale += (*rebinding.stale, *earlier)


def _prepare(owner: str, module: ModuleType, replacement: Replacement, tree: Tree) -> Installed:
    site = replacement.site
    if replacement.new:
        return _prepare_new(owner, module, replacement)
    parent, name, raw = resolve(module, site)
    original = function_of(raw)
    home = _home(module, site)
    check_original(site, original, tree, home)
    made = _made(replacement, original, module)
    _check_parameters(replacement, original, made)
    _dress(owner, made, original, site)
    made.__module__ = home
    kind = kind_of(raw)
    return Installed(site, module, parent, name, raw, made if kind is None else kind(made))


def _prepare_new(owner: str, module: ModuleType, replacement: Replacement) -> Installed:
    """Build a function for a name that the module does not have. Raises `OverlayError` if it does."""
    site = replacement.site
    name = split_site(site)[1]
    if "." in name or name in vars(module):
        msg = f"{site} is there, and nothing should be" if "." not in name else f"{site} is not of a module"
        raise ConflictError(msg)
    made = _made(replacement, None, module)
    made.__module__, made.__qualname__ = _home(module, site), name
    made.__name__ = name
    setattr(made, OWNER, owner)
    return Installed(site, module, module, name, _NOTHING, made)


def _home(module: object, site: str) -> str:
    """Return what the module of a site is called where it runs, by which its functions are pickled."""
    return run_as(module) or split_site(site)[0]


def _made(replacement: Replacement, original: Any, module: ModuleType) -> FunctionType:
    made = replacement.make(original, module)
    if type(made) is not FunctionType or made is original or getattr(made, OWNER, None) is not None:
        msg = f"the factory of {replacement.site} returned {made!r}, not a plain function of its own"
        raise OverlayError(msg)
    return made


def _check_parameters(
    replacement: Replacement, original: Callable[..., Any], made: Callable[..., Any]
) -> None:
    from inspect import Parameter, isasyncgenfunction, iscoroutinefunction, isgeneratorfunction, signature

    def shape(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
        return [(p.name, p.kind, p.default) for p in signature(function).parameters.values()]

    site = replacement.site
    added = [part for part in shape(made) if part[0] in replacement.adds]
    optional = all(
        kind is Parameter.KEYWORD_ONLY and default is not Parameter.empty for _, kind, default in added
    )
    own = [part for part in shape(made) if part not in added]
    if shape(original) != own or len(added) != len(replacement.adds) or not optional:
        more = f", with {', '.join(replacement.adds)} added as optional keywords" if replacement.adds else ""
        msg = f"the replacement of {site} takes {signature(made)}, the original {signature(original)}{more}"
        raise OverlayError(msg)
    for kind in (isgeneratorfunction, iscoroutinefunction, isasyncgenfunction):
        if kind(original) != kind(made):
            msg = f"the replacement of {site} and the original differ in being what {kind.__name__} says"
            raise OverlayError(msg)


def _dress(owner: str, made: FunctionType, original: Any, site: str) -> None:
    """Give a replacement the name that it is found under, so that it pickles by reference and reads well."""
    made.__name__ = original.__name__
    made.__qualname__ = split_site(site)[1]
    made.__doc__ = original.__doc__
    made.__annotations__ = dict(original.__annotations__)
    if made.__dict__.pop("__wrapped__", None) is not None:  # by which `functools.wraps` gave it its signature
        from inspect import signature

        made.__signature__ = signature(original)  # type: ignore[attr-defined]
    made.__dict__.update({key: value for key, value in vars(original).items() if key not in _NOT_COPIED})
    setattr(made, ORIGINAL, original)
    setattr(made, OWNER, mark(owner, site))
