"""Unpack revisions of an upstream from git into `.cache/releases/<name>-<revision>/` without installing them.

The upstream is one of slime, which is in no package index, megatron (Megatron-LM), verl and miles;
`git_sources.py` says where each is taken from. A revision that is already there is not unpacked again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sources import git_sources
from sources.fetch_release import CACHE
from sources.git_sources import UPSTREAMS

if TYPE_CHECKING:
    from pathlib import Path


def fetch(project: str, revision: str, cache: Path = CACHE) -> Path:
    """Return the folder of a tag such as `v0.2.4` or of a commit, unpacked first if it is not there yet.

    Raises:
        FetchError: it is not there, and the repository of the project is not given or does not have it.

    """

    def unpack(into: Path, *paths: str) -> None:
        git_sources.unpack(git_sources.archive(project, revision, *paths), into)

    def unpack_one(made: Path) -> None:
        unpack(made.parent, path)
        (made.parent / path).rename(made)

    git_sources.check_name(project, revision)
    paths = UPSTREAMS[project].paths
    folder = git_sources.whole(cache / f"{project}-{revision}", lambda into: unpack(into, *paths))
    for path in paths:
        # A folder that was unpacked when less was wanted of the upstream.
        if not (folder / path).exists():
            git_sources.whole(folder / path, unpack_one)
    return folder
