"""Where modules, files and metadata lie: asking finders and folders without importing anything."""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.metadata import Distribution
    from typing import Any


#: Bytes of a source or a version file, many times what any module that a patch knows has. A parser takes a
#: hundred times as much memory.
LARGEST = 1 << 21


def is_endless(path: str) -> bool:
    """Return whether reading a path would take for ever: a pipe, a device, a file of no reasonable size."""
    return os.path.exists(path) and (not os.path.isfile(path) or os.path.getsize(path) > LARGEST)


def importable(site: str) -> bool:
    """Return whether a path is a folder or an archive that modules can be imported from."""
    return bool(site) and _entry_finder(site) is not None


def stated_version(found: Distribution) -> str | None:
    """Return the version in the metadata of a distribution, `None` if an interrupted installer left none."""
    folder = getattr(found, "_path", None)  # the library opens whatever lies there
    if isinstance(folder, os.PathLike):
        folder = os.fspath(folder)
        inside = [os.path.join(folder, name) for name in ("METADATA", "PKG-INFO")]
        if any(map(is_endless, inside if os.path.isdir(folder) else [folder])):
            return None
    try:
        return found.metadata["Version"]
    except Exception:  # noqa: BLE001 -- each release of the library has another one for metadata that is missing
        return None


def ask_finders(module: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """Ask the interpreter's finders, those that arm patches excepted."""
    for finder in list(sys.meta_path):
        find_spec = getattr(finder, "find_spec", None)
        if find_spec is None or getattr(finder, "overlay_finder", False):
            continue
        try:
            spec: ModuleSpec | None = find_spec(module, path)
        except Exception:  # noqa: BLE001, S112 -- a finder of someone else's that needs the parent imported
            continue
        if spec is not None:
            return spec
    return None


def ask_path(module: str, path: Sequence[str]) -> ModuleSpec | None:
    """Look in folders and archives only. Portions of a namespace package are put together."""
    found: list[str] = []
    for entry in path:
        finder = _entry_finder(entry)
        spec: ModuleSpec | None = finder.find_spec(module) if finder is not None else None
        if spec is None:
            continue
        if spec.loader is not None:
            return spec
        found += spec.submodule_search_locations or []
    if not found:
        return None
    spec = ModuleSpec(module, None, is_package=True)
    spec.submodule_search_locations = found
    return spec


def _entry_finder(entry: str) -> Any:
    """Return a fresh finder for one folder or archive: the interpreter's own ones cache what they list."""
    for hook in sys.path_hooks:
        try:
            finder: Any = hook(entry)
        except ImportError:  # that is how a path hook says no
            continue
        return finder
    return None


def portions(path: Any) -> list[str]:
    """Return the folders and archives of a package's path, none for what is no package."""
    # A namespace path recomputes itself through `sys.modules` when it is iterated; what it holds is enough.
    return list(getattr(path, "_path", None) or path or ())


def read_file(path: str, spec: ModuleSpec | None) -> bytes | None:
    """Return a file, also one inside an archive, `None` if there is none, or one of no reasonable size."""
    if is_endless(path):
        return None
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        pass
    get_data = getattr(spec and spec.loader, "get_data", None)
    try:
        data: bytes | None = get_data(path) if get_data else None
    except OSError:
        return None
    return data
