"""Time deciding on all patches: by parsing, and by the table of what they were tested on.

    ./scripts/bench deciding ['verl image 0.8.0'] [--times 5]

Each time is the median of fresh trees in one process: reading and hashing the files is in both.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING

from overlay.catalogue.registry import load_patches
from overlay.deciding.decide import decide, settle
from overlay.deciding.table import NAME, read
from overlay.reading.source import InstalledTree
from records.tested import PATCHES
from sources import releases

if TYPE_CHECKING:
    from overlay.deciding.table import Table


def timed(folder: str, times: int, files: list[str] | None) -> float:
    """Return the median seconds of deciding on all patches, with the table in some files, or without."""
    patches = [*load_patches().values()]
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        table: Table | None = None if files is None else read(files)
        tree = InstalledTree(folder)
        settle(patches, {patch.id: decide(patch, tree, table=table) for patch in patches}, tree)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def main(arguments: list[str]) -> int:
    """Print the times."""
    parser = argparse.ArgumentParser(prog="scripts/bench deciding", description="Time deciding.")
    parser.add_argument("release", nargs="?", default="verl image 0.8.0", help="a line of releases.txt")
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args(arguments)
    listed = {release.name: release for release in releases.read()}
    folder = str(releases.fetch(listed[options.release]))
    files = [str(path) for path in sorted(PATCHES.glob(f"*/{NAME}"))]
    for how, given in (("by the table", files), ("by parsing", None)):
        print(f"{options.release}: {how} {timed(folder, options.times, given) * 1000:.0f} ms")
    return 0
