"""Fetch releases without installing them, and print the folder of each.

    ./scripts/matrix fetch megatron-core==0.17.1 verl==0.9.1
    SLIME_REPO=~/slime ./scripts/matrix fetch slime==v0.2.4

Put a folder first on PYTHONPATH to import that release. It is one of a package index (`NAME==VERSION`), a tag
or a commit of slime, megatron, verl or miles (`PROJECT==REVISION`) from the repository that SLIME_REPO,
MEGATRON_REPO, VERL_REPO or MILES_REPO names, or the name of a line of `compat/releases.txt`, as of an image.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sources import fetch_release, releases
from sources.git_sources import FetchError
from sources.releases import Release


def main(arguments: list[str]) -> int:
    """Fetch what the command line names; exit status 1 if any of it cannot be had."""
    parser = argparse.ArgumentParser(description="Fetch releases without installing them.")
    parser.add_argument("release", nargs="+", help="such as megatron-core==0.17.1 or slime==v0.2.4")
    parser.add_argument(
        "--cache",
        type=Path,
        default=fetch_release.CACHE,
        help="folder of the releases (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    listed = {release.name: release for release in releases.read()}
    return max([_report(listed.get(name, Release(name)), options.cache) for name in options.release])


def _report(release: Release, cache: Path) -> int:
    try:
        print(releases.fetch(release, cache))
    except FetchError as error:
        print(f"fetch: {error}", file=sys.stderr)
        return 1
    return 0
