"""Loading the records of known defects, when somebody asks for them: no trainer does.

They lie beside the patches, in `_defects`: a module with `DEFECTS` for each project. The package of a pack
may have such a folder too, whose code runs only if `OVERLAY_PACKS` names the pack.
"""

from __future__ import annotations

import os

from overlay.defect import READ, Defect
from overlay.errors import OverlayError
from overlay.model.record import TYPE_CHECKING
from overlay.source import packs
from overlay.source.registry import COMPAT, PACK, import_module, modules_in, tables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from overlay.defect import Dialect
    from overlay.patch import Patch
    from overlay.source.table import Table


def load_defects(patches: Mapping[str, Patch]) -> dict[str, Defect]:
    """Return all defects by id; what one leaves to the patch that mends it stands in it.

    Args:
        patches: All that are known, by id.

    Raises:
        OverlayError: A pack cannot be loaded or names a patch that there is not, or two defects have one id.

    """
    found: dict[str, Defect] = {}
    table = tables()
    for name, package in [("", PACK), *((pack.name, pack.package) for pack in packs.named())]:
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


def _in_package(pack: str, package: str) -> list[Defect]:
    """Return the defects beside the patches in a package, none if there is no folder with any."""
    prefix = f"{pack}/" if pack else ""
    name = f"{package}._defects"
    try:
        folders = [os.path.join(folder, "_defects") for folder in import_module(package).__path__]
        files = [f"{name}.{file}" for folder in filter(os.path.isdir, folders) for file in modules_in(folder)]
        found = [defect for file in sorted(files) for defect in import_module(file).DEFECTS]
    except Exception as error:
        raise OverlayError(f"the defects in {name} cannot be loaded: {error!r}") from error
    for defect in found:
        if not isinstance(defect, Defect) or not defect.id.startswith(prefix):
            raise OverlayError(f"{name}: {defect!r} is no defect of an id that begins with {prefix!r}")
    return found


def _whole(defect: Defect, patch: Patch | None, table: Table) -> Defect:
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
