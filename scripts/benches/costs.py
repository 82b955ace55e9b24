"""What overlay costs: at start-up, per call, per partition, and on each worker.

Every number stands beside the plain thing measured in the same run, because only the ratio and the difference
mean something on another machine.
"""

from __future__ import annotations

import argparse
import platform

from benches import (
    _call,
    _files,
    _imports,
    _partition,
    _start,
    _workers,
)
from benches._timing import Row
from progress import tracked

#: name -> (what measures it, turns)
BENCHMARKS = {
    "start": (_start.measure, 60),
    "files": (_files.measure, 1),
    "imports": (_imports.measure, 3),
    "call": (_call.measure, 60),
    "partition": (_partition.measure, 3),
    "workers": (_workers.measure, 40),
}


def table(rows: list[Row]) -> str:
    """Return the rows as text in columns."""
    lines = [f"{'':52}{'plain':>9}{'with':>9}{'ratio':>8}{'more':>9}{'(min)':>9}{'target':>17}"]
    words = {"more": "more", "more_min": "(min)", "measured": "with", "ratio": "ratio"}
    for row in rows:
        ratio = f"{row.ratio:8.2f}" if row.ratio >= 0.1 else f"{row.ratio:8.4f}"
        numbers = f"{row.baseline:9.1f}{row.measured:9.1f}{ratio}{row.more:9.1f}{row.more_min:9.1f}"
        target = f"{words[row.held]} <= {row.target:.3g} {row.unit}".rstrip()
        lines.append(f"{row.name:52}{numbers}{target:>17}  {'ok' if row.met else 'MISSED'}")
    return "\n".join(lines)


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options, or stop with what is wrong with them."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description="Measure what overlay costs.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"which: {', '.join(BENCHMARKS)} (default: all)"
    )
    parser.add_argument("--turns", type=int, help="how often the candidates take turns")
    parser.add_argument("--seed", type=int, help="of the samples that are partitioned")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - set(BENCHMARKS))
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    if options.turns is not None and options.turns < 1:
        parser.error("--turns must be at least 1")
    options.names = options.names or list(BENCHMARKS)
    return options


def main(arguments: list[str]) -> int:
    """Measure and print; 1 if a benchmark cannot run."""
    options = parsed(arguments)
    if options.seed is not None:
        _partition.SEED = options.seed
    rows: list[Row] = []
    failures: dict[str, str] = {}
    for name in tracked(options.names):
        measure, turns = BENCHMARKS[name]
        try:
            rows += measure(options.turns or turns)
        except RuntimeError as error:
            failures[name] = str(error)
    about = f"Python {platform.python_version()}, {platform.machine()}, {platform.system()}, processor time"
    print(f"{about}; medians; (min) compares minima\n{table(rows)}")
    if "imports" in options.names:
        print(f"\n{_imports.report()}")
    if "partition" in options.names:
        print(f"\n{_partition.report()}")
    for name, reason in failures.items():
        print(f"{name} could not be measured: {reason}")
    return int(bool(failures))
