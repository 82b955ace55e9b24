"""Which of some projects are installed, in which version and where, without importing any."""

from __future__ import annotations

import os

from overlay.errors import OverlayError
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
    file = tree.file(project.marker)
    if not file:
        return Installed(project=project.name, version="", where="")
    try:
        version = version_of(project, tree) or UNKNOWN
    except OverlayError:
        version = UNKNOWN
    is_package = os.path.splitext(os.path.basename(file))[0] == "__init__"
    for _ in range(project.marker.count(".") + 1 + is_package):
        file = os.path.dirname(file)
    return Installed(project=project.name, version=version, where=file)
