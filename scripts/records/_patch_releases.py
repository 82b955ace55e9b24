"""The releases of the projects that a patch is for, as far as they can be had here."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sources import releases
from sources.git_sources import FetchError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from overlay.patch import Patch
    from sources.releases import Release


def of(patch: Patch, *, missing: dict[str, str], images: bool = True) -> Iterator[tuple[Release, Path]]:
    """Yield the listed releases of a patch's projects with the folder of each.

    Args:
        patch: The patch.
        missing: Gets those that cannot be had, and why.
        images: Whether what people have together under a name counts as well.

    """
    wanted = {_short(target.project.name) for target in patch.targets}
    for release in releases.read(releases.LIST):
        # An image of its parts; a head of one project has one.
        if not wanted & {_short(part) for part in release.parts or (release.name,)}:
            continue
        if release.is_image and not images:
            continue
        try:
            yield release, releases.fetch(release)
        except FetchError as error:
            missing[release.name] = str(error)


def _short(name: str) -> str:
    """Return the first word of a project's name, as patch ids and commits of git have it."""
    return re.split(r"==|[ -]", name)[0]
