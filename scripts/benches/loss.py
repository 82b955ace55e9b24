"""Measure the memory and the time of slime's loss: of each release, and with overlay.

    SLIME_REPO=~/slime ./scripts/bench loss

`loss_memory_check.py` runs once for each revision, which takes turns with overlay in one process. Memory is
the peak beyond the logits in N, the size of the logits: of the storages that are alive on a CPU, of the
allocator on a GPU. Time is of one thread's processor on a CPU and of the clock on a GPU.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from checks import UPSTREAMS

from benches import _program
from sources.git_sources import fetch

CHECK = UPSTREAMS / "loss_memory_check.py"

#: Revisions and their columns, of which the last is the best.
REVISIONS = {"v0.2.0": "0.2.0", "v0.2.4": "0.2.4", "v0.3.0": "0.3.0", "v0.3.1": "0.3.1"}
BEST = "0.3.1"
#: Most of it with the gradient in the place of the logits.
IN_PLACE = 0.15


def run(revision: str, options: list[str]) -> dict[str, Any]:
    """Return what the check printed for a revision. Raises `RuntimeError`."""
    found: dict[str, Any] = _program.found(
        CHECK, *options, release=fetch("slime", revision), OVERLAY_PATCHES="none"
    )
    return found


def main(arguments: list[str]) -> int:
    """Print both tables; exit status 1 if a target is missed."""
    parser = argparse.ArgumentParser(description="Measure slime's loss with and without overlay.")
    parser.add_argument("--tokens", default="2048")
    parser.add_argument("--vocabulary", default="8192")
    parser.add_argument("--turns", default="5")
    options = parser.parse_args(arguments)
    given = [f"--{name}={getattr(options, name)}" for name in ("tokens", "vocabulary", "turns")]
    try:
        runs = {column: run(revision, given) for revision, column in REVISIONS.items()}
    except RuntimeError as error:
        sys.exit(f"bench loss: {error}")
    first = runs[BEST]
    print(f"T {options.tokens}, V {options.vocabulary}, 4 samples; torch {first['torch']}, {first['device']}")
    met = _memory(runs)
    met = _time(runs) and met
    return 0 if met else 1


def _memory(runs: dict[str, dict[str, Any]]) -> bool:
    heads = [*runs, "overlay", "in place", "target"]
    print(f"\n{'peak beyond the logits, in N':<42}" + "".join(f"{head:>9}" for head in heads))
    met = True
    for case, rows in runs[BEST]["cases"].items():
        peaks = [run["cases"][case]["upstream"]["peak"] for run in runs.values()]
        # The most that overlay takes in any of the releases.
        own = max(run["cases"][case]["overlay"]["peak"] for run in runs.values())
        most = 0.2 if "no gradient" in case else 1.1
        place = f"{rows['in place']['peak']:9.2f}" if "in place" in rows else f"{'-':>9}"
        print(f"{case:<42}" + "".join(f"{peak:9.2f}" for peak in [*peaks, own]) + f"{place}{most:9.1f}")
        met = met and own <= most and rows.get("in place", {"peak": 0})["peak"] <= IN_PLACE
    return met


def _time(runs: dict[str, dict[str, Any]]) -> bool:
    print(
        f"\n{f'time, relative to {BEST}':<42}"
        + "".join(f"{head:>9}" for head in [*runs, "overlay", "target"])
    )
    met = True
    for case, rows in runs[BEST]["cases"].items():
        unit = rows["upstream"]["seconds"]
        own = rows["overlay"]["seconds"] / unit
        most = 0.4 if "25%" in case else 0.8
        times = [run["cases"][case]["upstream"]["seconds"] / unit for run in runs.values()]
        print(f"{case:<42}" + "".join(f"{part:9.2f}" for part in [*times, own]) + f"{most:9.1f}")
        met = met and own <= most
    return met
