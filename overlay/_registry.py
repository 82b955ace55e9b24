"""Loading the patches that come with overlay.

The id of a patch is its place: `patches/verl/dynamic_cp_loss.py` holds `verl.dynamic-cp-loss`. The folder
is listed, not declared, so that adding a patch is adding a file.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

from overlay.errors import OverlayError
from overlay.patch import Patch

#: The package that is searched. The only place where the engine mentions what is built on top of it, and
#: it does so by name: nothing in the engine imports it when it is imported itself.
PACK = "overlay.patches"


def load_patches(pack: str = PACK) -> dict[str, Patch]:
    """Import every patch file of a pack and return the patches by id.

    Raises `OverlayError` if a file defines no `PATCH`, or one whose id is not its place.
    """
    package = import_module(pack)
    patches: dict[str, Patch] = {}
    for folder in package.__path__:
        for project in _listing(folder):
            path = os.path.join(folder, project)
            if project.startswith(("_", ".")) or not os.path.isdir(path):
                continue
            for file in _listing(path):
                name, extension = os.path.splitext(file)
                if extension != ".py" or name.startswith("_"):
                    continue
                patch = _load(f"{pack}.{project}.{name}", f"{project}.{name.replace('_', '-')}")
                patches[patch.id] = patch
    return patches


def _listing(folder: str) -> list[str]:
    return sorted(os.listdir(folder))


def _load(module: str, expected: str) -> Patch:
    import_module(module)
    patch = getattr(sys.modules[module], "PATCH", None)
    if not isinstance(patch, Patch):
        msg = f"{module} defines no PATCH"
        raise OverlayError(msg)
    if patch.id != expected:
        msg = f"{module} defines the patch {patch.id!r}; its place asks for {expected!r}"
        raise OverlayError(msg)
    return patch
