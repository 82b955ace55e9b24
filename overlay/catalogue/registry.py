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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from overlay.patch import Project

#: The package that is searched. The only place where the engine mentions what is built on top of it, and
#: it does so by name: nothing in the engine imports it when it is imported itself.
PACK = "overlay.patches"
#: What is known of upstreams beside the patches, named here for the same reason.
COMPAT = "overlay.compat"

#: The module of each patch that was loaded, by its id.
_modules: dict[str, str] = {}


def recorded_projects() -> tuple[Project, ...]:
    """Return the projects that no patch changes and whose versions a lock keeps all the same."""
    projects: tuple[Project, ...] = import_module(f"{COMPAT}.environment").RECORDED
    return projects


def module_of(patch: str) -> str:
    """Return the name of the module that holds a patch, empty if it was not loaded from one."""
    return _modules.get(patch, "")


def load_patches(pack: str = PACK, prefix: str = "") -> dict[str, Patch]:
    """Import every patch file of a pack and return the patches by id, which begins with `prefix`.

    Raises `OverlayError` if there is none, or if a file defines no `PATCH`, or one whose id is not its place.
    """
    package = import_module(pack)
    patches: dict[str, Patch] = {}
    for folder in package.__path__:
        for project in _listing(folder, packages=True):
            for name in _listing(os.path.join(folder, project), packages=False):
                patch = _load(f"{pack}.{project}.{name}", f"{prefix}{project}.{name.replace('_', '-')}")
                patches[patch.id] = patch
    if not patches:
        msg = f"{pack} holds no patches ({', '.join(package.__path__)}): it is not installed completely"
        raise OverlayError(msg)
    return patches


def _listing(folder: str, *, packages: bool) -> list[str]:
    """Return the names of the packages, or of the modules, in a folder or an archive."""
    try:
        files = os.listdir(folder)
    except NotADirectoryError:
        # Inside an archive. `pkgutil` reads those too, but takes longer to import than `enable()` may.
        from pkgutil import iter_modules

        found = {module.name for module in iter_modules([folder]) if module.ispkg is packages}
    else:
        if packages:
            found = {name for name in files if os.path.isdir(os.path.join(folder, name))}
        else:
            # An image that was slimmed has the compiled files alone.
            split = [os.path.splitext(file) for file in files]
            found = {name for name, extension in split if extension in (".py", ".pyc")}
    return sorted(name for name in found if name.isidentifier() and not name.startswith("_"))


def _load(module: str, expected: str) -> Patch:
    import_module(module)
    patch = getattr(sys.modules[module], "PATCH", None)
    if not isinstance(patch, Patch):
        msg = f"{module} defines no PATCH"
        raise OverlayError(msg)
    if patch.id != expected:
        msg = f"{module} defines the patch {patch.id!r}; its place asks for {expected!r}"
        raise OverlayError(msg)
    _modules[patch.id] = module
    return patch
