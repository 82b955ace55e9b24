"""Digests of the code that is overlay's and its patches' own, so that a lock and the ranks can compare it.

Files are read, not imported: a pack is compared with its lock before any of it runs.
"""

from __future__ import annotations

import os
import sys

from overlay.errors import OverlayError
from overlay.source.own_code import files as _files
from overlay.source.own_code import of_module
from overlay.source.registry import COMPAT, PACK, module_of
from overlay.source.table import NAME as TESTED

#: What the name of a file in a patch's folder begins with if it proves the patch.
PROOF = "contract"


def of_overlay() -> str:
    """Return the digest of all of overlay but the patches, the same for every kind of installation."""
    files = {}
    for package in ("overlay", COMPAT, PACK):
        below = package.removeprefix("overlay").strip(".")
        files.update({os.path.join(below, name): path for name, path in _files(package).items()})
    return _digest({name: path for name, path in files.items() if not _is_patch(name)})


def of_package(package: str) -> str:
    """Return the digest of all files of a package. Raises `OverlayError` if there is no such package."""
    files = _files(package)
    if not files:
        raise OverlayError(f"the package {package} cannot be found")
    return _digest(files)


def of_patch(patch: str) -> str:
    """Return the digest of what holds a patch which has been loaded, empty if no file does.

    What proves a patch, and is not run by it, is not counted: a lock says what runs.
    """
    spec = getattr(sys.modules.get(module_of(patch)), "__spec__", None)
    if spec is None or not os.path.isfile(spec.origin or ""):
        return ""
    files = _files(spec.name) if spec.submodule_search_locations is not None else {"": spec.origin}
    return _digest({name: path for name, path in files.items() if not name.startswith(PROOF)})


def of_code(patch: str) -> str:
    """Return the digest of the code of a patch and its contract, empty if it was not loaded from a file."""
    name = module_of(patch)
    return of_module(name) if name else ""


def _is_patch(name: str) -> bool:
    """Return whether a file, by its path in the package, belongs to one patch and is not what patches share.

    `patches/PROJECT/NAME.py`, and all in the folder `patches/PROJECT/NAME/`.
    """
    first, *rest = name.split(os.sep)
    own = not any(part.startswith("_") or part == TESTED for part in rest[:2])
    return first == "patches" and len(rest) > 1 and own


def _digest(files: dict[str, str]) -> str:
    from hashlib import sha256

    total = sha256()
    for name in sorted(files):
        with open(files[name], "rb") as file:
            inside = sha256(file.read()).hexdigest()
        total.update(f"{name.replace(os.sep, '/')}\0{inside}\0".encode())
    return total.hexdigest()
