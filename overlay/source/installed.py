"""Which of some projects are installed, in which version and where, without importing any."""

from __future__ import annotations

import os

from overlay.errors import OverlayError, SourceError
from overlay.model.record import Record
from overlay.source.decide import UNKNOWN, version_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from overlay.patch import Project
    from overlay.source.source import InstalledTree


class Installed(Record):
    """A project as it is found, or not found."""

    project: str
    #: Empty if it is not installed.
    version: str
    #: The folder of the path that it is imported from; empty if it is not installed.
    where: str


def installed(projects: Iterable[Project], tree: InstalledTree) -> tuple[Installed, ...]:
    """Return what is found of each project. Never raises."""
    return tuple(_look(project, tree) for project in projects)


def _look(project: Project, tree: InstalledTree) -> Installed:
    try:
        there = tree.has(project.marker)
    except SourceError:
        there = True  # and cannot be read
    try:
        version = version_of(project, tree) if there else ""
    except OverlayError:
        version = UNKNOWN
    where = _folder(project.marker, tree) if there else ""
    if there and not version:
        # A folder that happens to have its name is none of it.
        version, where = (UNKNOWN, where) if tree.file(project.marker) else ("", "")
    return Installed(project=project.name, version=version, where=where)


def _folder(module: str, tree: InstalledTree) -> str:
    """Return the folder of the path that a module is imported from."""
    file = tree.file(module)
    if not file:
        found = tree.folders(module)
        return os.path.dirname(found[0]) if found else ""
    inside = module.count(".") + (os.path.splitext(os.path.basename(file))[0] == "__init__")
    for _ in range(inside + 1):
        file = os.path.dirname(file)
    return file
