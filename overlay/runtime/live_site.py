"""Live objects: where a site is in an imported module, and whether it is what the source says.

The source of a site has been recognised by the time that this is asked. The file may have changed since it
was imported, and somebody may have put something else in its place, so the code that would run is compared
with the code that the source compiles to.
"""

from __future__ import annotations

from types import FunctionType

from overlay.errors import OverlayError
from overlay.model.marks import OWNER, is_wrapper
from overlay.source.fingerprint import fingerprint
from overlay.source.shape import split_site

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from overlay.source.source import Tree

_METHOD_KINDS = (staticmethod, classmethod)
#: Names of a module that is run: by the interpreter, and again in a process that `multiprocessing` spawns.
_RUN = ("__main__", "__mp_main__")


class ConflictError(OverlayError):
    """Someone else's object stands at a site."""


def run_as(module: object) -> str:
    """Return the name of a module that is run instead of imported, empty for any other."""
    name = getattr(module, "__dict__", {}).get("__name__")
    return name if name in _RUN else ""


def function_of(raw: object) -> Any:
    """Return the function behind a raw class or module attribute."""
    return raw.__func__ if isinstance(raw, _METHOD_KINDS) else raw


def kind_of(raw: object) -> type | None:
    """Return `staticmethod` or `classmethod` if a raw attribute is one."""
    return type(raw) if isinstance(raw, _METHOD_KINDS) else None


def resolve(module: ModuleType, site: str) -> tuple[Any, str, object]:
    """Return the object that holds a site, the attribute's name and its raw value. Raises `OverlayError`."""
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


def current(module: object, site: str) -> tuple[Any, object]:
    """Return the object that holds a site and the raw value there now, `None` for what is missing."""
    parent: Any = module
    *path, name = split_site(site)[1].split(".")
    for step in path:
        parent = _own(parent, step)
    return parent, _own(parent, name)


def _own(parent: object, name: str) -> Any:
    try:
        return object.__getattribute__(parent, "__dict__").get(name)
    except AttributeError:
        # The dictionary of a class is no instance attribute.
        return vars(parent).get(name) if isinstance(parent, type) else None


def describe(value: object) -> str:
    """Say what stands at a site, so that a person finds it."""
    function = function_of(value)
    if type(function) is not FunctionType:
        return f"a {type(value).__qualname__}"
    owner = function.__dict__.get(OWNER)
    if isinstance(owner, str) and not is_wrapper(function):
        return f"{owner} of overlay"
    code = function.__code__
    name = getattr(code, "co_qualname", getattr(function, "__qualname__", code.co_name))
    return f"{getattr(function, '__module__', '?')}:{name}, {code.co_filename}:{code.co_firstlineno}"


def check_original(site: str, original: object, tree: Tree, home: str) -> None:
    """Raise `ConflictError` unless the live object is the function that the source defines.

    `home` is what the module of the site is called where it runs.
    """
    if type(original) is not FunctionType:  # a transparent proxy says that it is an instance of one
        msg = f"{site} is a {type(original).__name__} in the imported module, not a plain function"
        raise ConflictError(msg)
    if getattr(original, OWNER, None) is not None:
        msg = f"{site} is already replaced by {describe(original)}"
        raise ConflictError(msg)
    own = fingerprint(original.__code__)
    origin = tree.chain(site)[-1]
    defined_in = split_site(origin)[0]
    if defined_in == split_site(site)[0]:
        defined_in = home
    if original.__module__ == defined_in and own in tree.fingerprints(origin):
        return
    msg = (
        f"{site} was replaced by someone else, or its file has changed since it was imported "
        f"({describe(original)}); enable overlay first"
    )
    raise ConflictError(msg)
