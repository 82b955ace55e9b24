"""Digests of the code that is overlay's and its patches' own, so that a lock and the ranks can compare it.

Files are read, not imported: a pack is compared with its lock before any of it runs.
"""

from __future__ import annotations

import os

from overlay.errors import OverlayError
from overlay.source.own_code import files as _files
from overlay.source.own_code import of_module
from overlay.source.registry import COMPAT, PACK, module_of


def of_overlay() -> str:
    """Return the digest of all of overlay and its patches, the same for every kind of installation."""
    files = {}
    for package in ("overlay", COMPAT, PACK):
        below = package.removeprefix("overlay").strip(".")
        files.update({os.path.join(below, name): path for name, path in _files(package).items()})
    return _digest(files)


def of_pack(package: str) -> str:
    """Return the digest of all code beside the package of a pack's patches: they may import any of it.

    `acme_overlay.patches` lies in `acme_overlay`. Raises `OverlayError` if there is no such package.
    """
    if not _files(package):
        raise OverlayError(f"the package {package} cannot be found")
    return _digest(_files(package.rpartition(".")[0] or package))


def of_code(patch: str) -> str:
    """Return the digest of the code of a patch and its contract, empty if it was not loaded from a file."""
    name = module_of(patch)
    return of_module(name) if name else ""


def _digest(files: dict[str, str]) -> str:
    from hashlib import sha256

    total = sha256()
    for name in sorted(files):
        with open(files[name], "rb") as file:
            inside = sha256(file.read()).hexdigest()
        total.update(f"{name.replace(os.sep, '/')}\0{inside}\0".encode())
    return total.hexdigest()
