"""Loading the records of known defects: for commands, and on the first rank of a job that knows its settings.

The records lie beside the patches, in `_defects`: a module with `DEFECTS` for each project.
"""

from __future__ import annotations

from overlay.defect import READ
from overlay.model.record import TYPE_CHECKING
from overlay.source.registry import COMPAT, PACK, import_module, modules_in, tables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from overlay.defect import Defect, Dialect
    from overlay.patch import Patch
    from overlay.source.table import Table


def load_defects(patches: Mapping[str, Patch]) -> dict[str, Defect]:
    """Return all defects by id, each made whole."""
    table = tables()
    return {defect.id: whole(defect, patches, table) for defect in records(patches)}


def records(patches: Mapping[str, Patch]) -> list[Defect]:
    """Return all defects as they are recorded."""
    package = import_module(f"{PACK}._defects")
    files = sorted(f"{package.__name__}.{name}" for folder in package.__path__ for name in modules_in(folder))
    found = [defect for file in files for defect in import_module(file).DEFECTS]
    # In a checkout without its patch, a defect cannot be judged.
    return [defect for defect in found if not defect.patch or defect.patch in patches]


def dialects() -> tuple[Dialect, ...]:
    """Return the formats in which the settings of jobs are written."""
    known: tuple[Dialect, ...] = import_module(f"{COMPAT}.dialects").DIALECTS
    return known


def whole(defect: Defect, patches: Mapping[str, Patch], table: Table) -> Defect:
    """Return a defect with the fields that its record leaves to its patch and to the table filled in."""
    patch = patches.get(defect.patch)
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
