"""Installing the sites of one patch in one module: all of them, or none.

Plain functions only. A transparent proxy would be skipped by `torch.compile`, by `torch.jit.script` and by
pickle, without a word, so the replacement is a function of its own that carries the original's name.
"""

from __future__ import annotations

from types import FunctionType

from overlay._aliases import rebind
from overlay._record import TYPE_CHECKING
from overlay._shape import split_site
from overlay.errors import OverlayError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

    from overlay._source import Tree
    from overlay.patch import Replacement

#: Where a replacement keeps what it replaced, and whose it is.
ORIGINAL = "__overlay_original__"
OWNER = "__overlay_patch__"

_METHOD_KINDS = (staticmethod, classmethod)


class ConflictError(OverlayError):
    """Someone else's object stands at a site."""


class Installed:
    """One site in place, with all that is needed to take it out again."""

    def __init__(self, site: str, parent: Any, name: str, before: object, after: object) -> None:
        self.site = site
        self.parent = parent
        self.name = name
        self.before = before
        self.after = after
        self.rebound: tuple[str, ...] = ()
        self.stale: tuple[str, ...] = ()
        self._undo: list[Callable[[], None]] = []

    @property
    def in_place(self) -> bool:
        """Whether the site still holds what was put there."""
        return vars(self.parent).get(self.name) is self.after

    def check_untouched(self) -> None:
        """Raise `ConflictError` if somebody changed the site since it was looked at."""
        if vars(self.parent).get(self.name) is not self.before:
            msg = f"{self.site} was replaced by someone else at this very moment"
            raise ConflictError(msg)

    def put(self) -> None:
        """Put the replacement in place."""
        setattr(self.parent, self.name, self.after)

    def remember(self, undo: list[Callable[[], None]]) -> None:
        """Add what restores the aliases of this site."""
        self._undo += undo

    def revert(self) -> bool:
        """Put the original back, the very object. Return whether the site was still ours to restore."""
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        if not self.in_place:
            return False
        setattr(self.parent, self.name, self.before)
        return True


def prepare(
    owner: str, module: ModuleType, replacements: Sequence[Replacement], tree: Tree
) -> list[Installed]:
    """Look at every site of `owner` in `module` and build its replacement, without changing anything.

    Raises `OverlayError`, or whatever a factory raised.
    """
    return [_prepare(owner, module, replacement, tree) for replacement in replacements]


def put(sites: Sequence[Installed]) -> None:
    """Put prepared sites in place and rebind their aliases. On any failure everything is put back."""
    done: list[Installed] = []
    try:
        for site in sites:
            site.check_untouched()
            done.append(site)
            site.put()
        _rebind_aliases(sites)
    except BaseException:
        for site in reversed(done):
            site.revert()
        raise


def function_of(raw: object) -> Any:
    """Return the function behind a raw class or module attribute."""
    return raw.__func__ if isinstance(raw, _METHOD_KINDS) else raw


def _prepare(owner: str, module: ModuleType, replacement: Replacement, tree: Tree) -> Installed:
    site = replacement.site
    parent, name, raw = _resolve(module, site)
    original = function_of(raw)
    _check_original(site, original, tree)
    made = replacement.make(original, module)
    if not isinstance(made, FunctionType) or made is original:
        msg = f"the factory of {site} returned {made!r}, not a plain function of its own"
        raise OverlayError(msg)
    _check_parameters(site, original, made)
    _dress(owner, made, original, site)
    kind = type(raw) if isinstance(raw, _METHOD_KINDS) else None
    after = kind(made) if kind is not None else made
    return Installed(site, parent, name, raw, after)


def _resolve(module: ModuleType, site: str) -> tuple[Any, str, object]:
    """Return the object that holds a site, the attribute's name and its raw value."""
    # Imported here: by now a target is really there, and the cost of wrapt no longer shows.
    from wrapt import resolve_path

    _, qualname = split_site(site)
    try:
        parent, name, raw = resolve_path(module, qualname)
    except AttributeError as error:
        msg = f"{site} does not exist in the imported module, although its source defines it: {error}"
        raise OverlayError(msg) from error
    if name not in vars(parent):
        msg = f"{site} is inherited, not defined there"
        raise OverlayError(msg)
    return parent, name, raw


def _check_original(site: str, original: object, tree: Tree) -> None:
    """Raise unless the live object is the function that the source defines.

    The source was recognised; this makes sure that nobody has put something else in its place since.
    """
    if not isinstance(original, FunctionType):
        msg = f"{site} is a {type(original).__name__} in the imported module, not a plain function"
        raise ConflictError(msg)
    foreign = getattr(original, OWNER, None)
    if foreign is not None:
        msg = f"{site} is already replaced by {foreign}"
        raise ConflictError(msg)
    home, qualname = _defined_at(site, tree)
    lines = {node.lineno for node in tree.nodes(f"{home}:{qualname}") if hasattr(node, "lineno")}
    lines |= {
        decorator.lineno
        for node in tree.nodes(f"{home}:{qualname}")
        for decorator in getattr(node, "decorator_list", [])
    }
    code = original.__code__
    name = getattr(code, "co_qualname", original.__qualname__)
    if original.__module__ != home or name != qualname or code.co_firstlineno not in lines:
        where = f"{original.__module__}:{name}, {code.co_filename}:{code.co_firstlineno}"
        msg = (
            f"{site} was replaced by someone else before overlay was enabled ({where}); enable overlay first"
        )
        raise ConflictError(msg)


def _defined_at(site: str, tree: Tree) -> tuple[str, str]:
    """Return the module and qualified name where a site's function is defined: it may be a `from` import."""
    import ast

    for _ in range(8):  # a chain of re-exports; real ones have one link
        module, qualname = split_site(site)
        nodes = tree.nodes(site)
        if len(nodes) != 1 or not isinstance(nodes[0], ast.ImportFrom):
            return module, qualname
        imported = nodes[0]
        base = imported.module or ""
        if imported.level:
            package = module.split(".")
            if not tree.is_package(module):
                package.pop()
            package = package[: len(package) - imported.level + 1]
            base = ".".join([*package, base] if base else package)
        site = f"{base}:{imported.names[0].name}"
    return split_site(site)


def _check_parameters(site: str, original: Callable[..., Any], made: Callable[..., Any]) -> None:
    from inspect import signature

    def shape(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
        return [(p.name, p.kind, p.default) for p in signature(function).parameters.values()]

    if shape(original) != shape(made):
        msg = f"the replacement of {site} takes {signature(made)}, the original {signature(original)}"
        raise OverlayError(msg)


def _dress(owner: str, made: FunctionType, original: Any, site: str) -> None:
    """Give a replacement the name that it is found under, so that it pickles by reference and reads well.

    Never `__wrapped__`, which `torch.jit.script` follows back to the original, and never its `__dict__`,
    in which `torch.compile` keeps marks of its own.
    """
    made.__name__ = original.__name__
    made.__module__, made.__qualname__ = split_site(site)
    made.__doc__ = original.__doc__
    made.__annotations__ = dict(original.__annotations__)
    setattr(made, ORIGINAL, original)
    setattr(made, OWNER, owner)


def _rebind_aliases(sites: Sequence[Installed]) -> None:
    """Give the replacement to everybody who took the original before, or note who could not be given it."""
    pairs: list[tuple[object, object]] = []
    owners: list[Installed] = []
    for site in sites:
        if function_of(site.before).__module__ != split_site(site.site)[0]:
            # The site is a name that its module imported. That name alone was asked for: where the function
            # is defined, and wherever else it is used, it stays what it is.
            continue
        pairs.append((function_of(site.before), function_of(site.after)))
        owners.append(site)
        if site.before is not function_of(site.before):
            pairs.append((site.before, site.after))
            owners.append(site)
    if not pairs:
        return
    ignore: list[object] = [vars(site) for site in sites]
    found = rebind(pairs, [*ignore, *sites])
    for site, rebinding in zip(owners, found, strict=True):
        site.rebound += tuple(rebinding.rebound)
        site.stale += tuple(rebinding.stale)
        site.remember(rebinding.undo)
