#!/usr/bin/env python3
"""Unpack revisions of an upstream from git into `.cache/releases/<name>-<revision>/` without installing them.

    SLIME_REPO=~/slime python scripts/fetch_source.py slime v0.2.4 v0.3.1
    MEGATRON_REPO=~/megatron.bundle python scripts/fetch_source.py megatron 3714d81d

prints one folder per revision; put it first on PYTHONPATH to import that revision. The upstream is one of
slime, which is in no package index, megatron (Megatron-LM), verl and miles; `git_sources.py` says where each
is taken from. A revision that is already there is not unpacked again.
"""

from __future__ import annotations

import argparse
import io
import sys
import tarfile
from pathlib import Path

import git_sources
from git_sources import UPSTREAMS, FetchError

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "releases"


def fetch(project: str, revision: str, cache: Path = CACHE) -> Path:
    """Return the folder of a tag such as `v0.2.4` or of a commit, unpacked first if it is not there yet.

    Raises:
        FetchError: it is not there, and the repository of the project is not given or does not have it.

    """

    def unpack(into: Path) -> None:
        packed = git_sources.archive(project, revision, *UPSTREAMS[project].paths)
        with tarfile.open(fileobj=io.BytesIO(packed)) as files:
            files.extractall(into, filter="data")

    git_sources.check_name(project, revision)
    return git_sources.whole(cache / f"{project}-{revision}", unpack)


def main(arguments: list[str] | None = None) -> int:
    """Unpack what the command line names; exit status 1 if any of it cannot be had."""
    parser = argparse.ArgumentParser(description="Unpack revisions of an upstream without installing them.")
    parser.add_argument("project", choices=UPSTREAMS)
    parser.add_argument("revision", nargs="+", help="such as v0.2.4, or the digits of a commit")
    options = parser.parse_args(arguments)
    return max([_report(options.project, revision) for revision in options.revision])


def _report(project: str, revision: str) -> int:
    try:
        print(fetch(project, revision))
    except FetchError as error:
        print(f"fetch_source: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
