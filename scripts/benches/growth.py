"""Benchmark (i): how the planner and the partitioner grow, up to 65,536 samples and 4,096 ranks.

./scripts/bench growth --seed 1
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from benches import _partition, plans
from overlay.patches._dynamic_cp.mixed import plan_mixed, plan_step
from overlay.patches._partition import capped_partitions, fewest_parts, karmarkar_karp
from overlay.patches._partition.equal import equal_shares

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLES = (4096, 16384, 65536)
RANKS = (64, 512, 4096)
#: Lengths are what first fit packs under this many tokens.
BUDGET = _partition.BUDGET


def calls(count: int, ranks: int) -> dict[str, Callable[[], object]]:
    """Return what is timed for so many samples and ranks, by name."""
    drawn = _partition.lengths(count)
    room = plans.ROOM
    return {
        "plan of a step": lambda: plan_step(drawn, ranks, room, room),
        "plan, given": lambda: plan_mixed(drawn, ranks, room),
        "Karmarkar-Karp": lambda: karmarkar_karp(drawn, ranks, equal_size=False),
        "of equal size": lambda: karmarkar_karp(drawn, ranks, equal_size=True),
        "equal shares": lambda: equal_shares(drawn, ranks),
    }


def table() -> str:
    """Return the processor time of each, the least of two."""
    names = list(calls(64, 64))
    lines = [
        "Processor time in ms, the least of two; lognormal lengths up to the budget",
        f"{'samples':>8}{'ranks':>7}" + "".join(f"{name:>16}" for name in names),
    ]
    worst = 0.0
    for count in SAMPLES:
        for ranks in RANKS:
            times = [1e3 * best(call) for call in calls(count, ranks).values()]
            worst = max(worst, *times)
            lines.append(f"{count:8,}{ranks:7,}" + "".join(f"{value:16,.0f}" for value in times))
    lines.append(f"{'samples':>8}{'parts':>7}{'fewest parts':>16}{'capped':>16}")
    for count in SAMPLES:
        drawn = _partition.lengths(count)
        parts = fewest_parts(drawn, BUDGET)
        times = [
            1e3 * best(lambda: fewest_parts(drawn, BUDGET)),  # noqa: B023 -- called here
            1e3 * best(lambda: capped_partitions(drawn, parts, BUDGET)),  # noqa: B023
        ]
        worst = max(worst, *times)
        lines.append(f"{count:8,}{parts:7,}" + "".join(f"{value:16,.0f}" for value in times))
    return "\n".join([*lines, f"The most: {worst:,.0f} ms."])


def best(call: Callable[[], object]) -> float:
    """Return the seconds that a call takes, the least of two."""
    return min(_partition.timed(call) for _ in range(2))


def main(arguments: list[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="How planning and partitioning grow.")
    parser.add_argument("--seed", type=int, default=_partition.SEED, help="of the drawn lengths")
    options = parser.parse_args(arguments)
    _partition.SEED = options.seed
    print(f"{table()}\nDrawn with seed {options.seed}.")
    return 0
