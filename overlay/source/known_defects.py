"""Loading the records of known defects, when somebody asks for them: no trainer does.

Those that come with overlay lie beside its patches, a file for each project. A pack brings its own by an
entry point of the group `overlay.defects`, whose name is the pack's, and whose value a module with `DEFECTS`
or a package of such modules. Its code runs only if `OVERLAY_PACKS` names it, as that of its patches does.
"""

from __future__ import annotations

import sys
from importlib import import_module

from overlay.defect import READ, Defect
from overlay.errors import OverlayError
from overlay.model import settings
from overlay.model.record import TYPE_CHECKING
from overlay.source.registry import COMPAT, PACK, modules_in, tables

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from overlay.defect import Dialect
    from overlay.patch import Patch
    from overlay.source.table import Tables

GROUP = "overlay.defects"
#: The package of those that come with overlay.
OURS = f"{PACK}._defects"


def load_defects(patches: Mapping[str, Patch]) -> dict[str, Defect]:
    """Return all defects by id; what one leaves to the patch that mends it stands in it.

    Args:
        patches: All that are known, by id.

    Raises:
        OverlayError: A pack cannot be loaded or names a patch that there is not, or two defects have one id.

    """
    found: dict[str, Defect] = {}
    table = tables()
    for name, package in [("", OURS), *_packs()]:
        for defect in _in_package(name, package):
            if defect.id in found:
                raise OverlayError(f"two defects are called {defect.id}")
            if defect.patch and defect.patch not in patches:
                if not name:
                    continue  # a checkout without this patch: nothing can be judged
                raise OverlayError(f"{defect.id}: there is no patch {defect.patch!r}")
            found[defect.id] = _whole(defect, patches.get(defect.patch), table)
    return found


def dialects() -> tuple[Dialect, ...]:
    """Return the ways in which settings are written."""
    known: tuple[Dialect, ...] = import_module(f"{COMPAT}.dialects").DIALECTS
    return known


def _packs() -> list[tuple[str, str]]:
    """Return the packs that `OVERLAY_PACKS` names and that bring defects, each with its module."""
    wanted = settings.packs()
    if not wanted:
        return []
    from importlib.metadata import entry_points

    return sorted({(point.name, point.value) for point in entry_points(group=GROUP) if point.name in wanted})


def _in_package(pack: str, name: str) -> list[Defect]:
    prefix = f"{pack}/" if pack else ""
    try:
        package = import_module(name)
        modules = [package] if hasattr(package, "DEFECTS") else _modules_of(package)
        found = [defect for module in modules for defect in module.DEFECTS]
    except Exception as error:
        raise OverlayError(f"the defects in {name} cannot be loaded: {error!r}") from error
    for defect in found:
        if not isinstance(defect, Defect) or not defect.id.startswith(prefix):
            raise OverlayError(f"{name}: {defect!r} is no defect of an id that begins with {prefix!r}")
    return found


def _modules_of(package: ModuleType) -> list[ModuleType]:
    names = {f"{package.__name__}.{name}" for folder in package.__path__ for name in modules_in(folder)}
    for name in sorted(names):
        import_module(name)
    return [sys.modules[name] for name in sorted(names)]


def _whole(defect: Defect, patch: Patch | None, table: Tables) -> Defect:
    of = defect.id if defect.sites else defect.patch
    fixed = defect.fixed or (table.first_without(of, defect.project.name, defect.only) if of else None)
    defect = defect.replace(fixed=fixed)
    if patch is None:
        return defect.replace(shown=defect.shown or READ)
    return defect.replace(
        met=defect.met or patch.met,
        upstream=defect.upstream or patch.upstream,
        shown=defect.shown or f"overlay prove {patch.id}",
    )
