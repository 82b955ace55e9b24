"""Time deciding on all patches by the tables: where the files are known, and where the sites alone are.

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
from overlay.deciding.table import Table
from overlay.reading.source import InstalledTree
from records import _support_print
from sources import releases

if TYPE_CHECKING:
    from overlay.deciding.table import Row


def timed(folder: str, times: int, rows: list[Row]) -> float:
    """Return the median seconds of deciding on all patches by some rows."""
    patches = [*load_patches().values()]
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        tree, table = InstalledTree(folder), Table(rows)
        settle(patches, {patch.id: decide(patch, tree, table) for patch in patches}, tree)
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
    rows = _support_print.rows()
    for how, given in (("by files", rows), ("by sites", [row.replace(on={}) for row in rows])):
        print(f"{options.release}: {how} {timed(folder, options.times, given) * 1000:.0f} ms")
    return 0
