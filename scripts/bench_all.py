"""Run the benchmarks and print one table; scripts/bench starts this in the project's environment.

Every number stands beside the plain thing measured in the same run, because only the ratio and the difference
mean something on another machine.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from typing import TYPE_CHECKING

import bench_audit
import bench_call
import bench_start
import bench_timing
import bench_workers

if TYPE_CHECKING:
    from bench_timing import Row

#: name -> (what measures it, turns)
BENCHMARKS = {
    "start": (bench_start.measure, 60),
    "call": (bench_call.measure, 60),
    "audit": (bench_audit.measure, 11),
    "workers": (bench_workers.measure, 40),
}


def table(rows: list[Row]) -> str:
    """Return the rows as text in columns."""
    lines = [f"{'':52}{'plain':>9}{'with':>9}{'ratio':>8}{'more':>9}{'(min)':>9}{'target':>17}"]
    words = {"more": "more", "more_min": "(min)", "measured": "with"}
    for row in rows:
        numbers = f"{row.baseline:9.1f}{row.measured:9.1f}{row.ratio:8.2f}{row.more:9.1f}{row.more_min:9.1f}"
        target = f"{words[row.held]} <= {row.target:g} {row.unit}"
        lines.append(f"{row.name:52}{numbers}{target:>17}  {'ok' if row.met else 'MISSED'}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and with --check return 1 if a target is missed or a benchmark cannot run."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description="Measure what overlay costs.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"which: {', '.join(BENCHMARKS)} (default: all)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    parser.add_argument("--check", action="store_true", help="exit with status 1 if a target is missed")
    parser.add_argument("--wall", action="store_true", help="wall clock in place of processor time")
    parser.add_argument("--turns", type=int, help="how often the candidates take turns")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - set(BENCHMARKS))
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    if options.turns is not None and options.turns < 1:
        parser.error("--turns must be at least 1")
    bench_timing.WALL = options.wall
    rows: list[Row] = []
    failures: dict[str, str] = {}
    for name in options.names or BENCHMARKS:
        measure, turns = BENCHMARKS[name]
        print(f"measuring: {name}", file=sys.stderr, flush=True)
        try:
            rows += measure(options.turns or turns)
        except RuntimeError as error:
            failures[name] = str(error)
    clock = "wall clock" if bench_timing.WALL else "processor time"
    about = f"Python {platform.python_version()}, {platform.machine()}, {platform.system()}, {clock}"
    if options.json:
        print(
            json.dumps(
                {"about": about, "rows": [row.to_dict() for row in rows], "failures": failures}, indent=1
            )
        )
    else:
        print(f"{about}; medians, min is least minus least\n{table(rows)}")
        for name, reason in failures.items():
            print(f"{name} could not be measured: {reason}")
    return int(options.check and (bool(failures) or not all(row.met for row in rows)))


if __name__ == "__main__":
    sys.exit(main())
