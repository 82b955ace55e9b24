"""Steps under dynamic context parallelism, by the cost model of the planner.

As a program this prints what a step takes, over the least that any plan could, for each way to cut it:

    ./scripts/bench plans --seed 1

Nothing here was timed on a GPU.
"""

from __future__ import annotations

import argparse
import math
import random
from statistics import median
from typing import TYPE_CHECKING

from benches import _dynamic_cp_rivals as rivals
from benches import _partition
from overlay.patches._dynamic_cp import cost
from overlay.patches._dynamic_cp.mixed import plan_step, smallest_size
from overlay.patches._dynamic_cp.plan import allowed_sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from overlay.patches._dynamic_cp.plan import Plan

RANKS, ROOM = 8, 4096
SHORTEST, LONGEST, MEDIAN, SIGMA = 1024, 16384, 2500, 0.9
#: Sequences of a step, and how many steps are drawn.
DRAWN = ((64, 1000), (16, 1000), (256, 100))


def mixed(lengths: Sequence[int], ranks: int, room: int) -> list[Plan]:
    """Return the step of `OVERLAY_DCP=mixed`, with places in `lengths`."""
    return [
        tuple((start, size, tuple(indices[place] for place in places)) for start, size, places in plan)
        for indices, plan in plan_step(lengths, ranks, room, room)
    ]


METHODS: dict[str, Callable[[Sequence[int], int, int], list[Plan]]] = {
    "fixed CP 4": rivals.fixed,
    "verl 0.8.0": rivals.verl,
    "uniform": rivals.uniform,
    "mixed": mixed,
}


def drawn(count: int, number: int) -> list[int]:
    """Draw the tokens of a step's sequences, with a long tail."""
    draw = random.Random(f"{_partition.SEED}/{count}/{number}")  # noqa: S311 -- lengths, not secrets
    return [
        min(LONGEST, max(SHORTEST, round(draw.lognormvariate(math.log(MEDIAN), SIGMA)))) for _ in range(count)
    ]


def load(lengths: Sequence[int], size: int, indices: Sequence[int]) -> int:
    """Return the picoseconds of a subgroup."""
    return cost.start_cost(size) + sum(cost.sequence_cost(lengths[index], size) for index in indices)


def in_turns(step: Sequence[Plan], lengths: Sequence[int]) -> int:
    """Return what a step takes if all ranks wait for each other after each micro-batch."""
    return sum(max(load(lengths, size, indices) for _, size, indices in plan) for plan in step)


def waiting_for_partners(step: Sequence[Plan], lengths: Sequence[int]) -> int:
    """Return what a step takes if a rank waits for the other ranks of its subgroup only."""
    busy = [0] * RANKS
    for plan in step:
        for start, size, indices in plan:
            until = max(busy[start : start + size]) + load(lengths, size, indices)
            busy[start : start + size] = [until] * size
    return max(busy)


def bound(lengths: Sequence[int], ranks: int = RANKS, room: int = ROOM) -> float:
    """Return what no step can do without: the work spread evenly, or the longest sequence alone.

    Each sequence counts at the size that is best for it, and no micro-batch costs anything to start.
    """
    work, alone = 0, 0
    for length in lengths:
        sizes = [size for size in allowed_sizes(ranks) if size >= smallest_size(length, room)]
        work += min(size * cost.sequence_cost(length, size) for size in sizes)
        alone = max(alone, min(cost.sequence_cost(length, size) for size in sizes))
    return max(work / ranks, alone)


def compared(count: int, steps: int) -> list[str]:
    """Return the lines for steps of `count` sequences."""
    ways = (in_turns, waiting_for_partners)
    over: dict[str, list[list[float]]] = {name: [[], []] for name in METHODS}
    for number in range(steps):
        lengths = drawn(count, number)
        least = bound(lengths)
        for name, method in METHODS.items():
            step = method(lengths, RANKS, ROOM)
            assert sorted(i for plan in step for _, _, part in plan for i in part) == list(range(count))
            for way, found in zip(ways, over[name], strict=True):
                found.append(way(step, lengths) / least)
    lines = []
    for name, (turns, partners) in over.items():
        worse = [
            sum(a > b * (1 + 1e-9) for a, b in zip(ours, theirs, strict=True))
            for ours, theirs in zip(over["mixed"], (turns, partners), strict=True)
        ]
        gain = median(a / b for a, b in zip(turns, over["mixed"][0], strict=True))
        lines.append(
            f"{count:5} {name:20}{median(turns):8.3f} {tail(turns):6.3f} {max(turns):6.3f}"
            f"{gain:8.2f}{worse[0]:6}  {median(partners):8.3f} {tail(partners):6.3f}{worse[1]:6}"
        )
    return lines


def tail(values: list[float]) -> float:
    """Return the value that one in twenty exceeds."""
    return sorted(values)[len(values) * 19 // 20]


def table() -> str:
    """Return the model, and for each number of sequences what each way to cut a step takes."""
    linear, quadratic, exchange = cost.LINEAR / 1e6, cost.QUADRATIC / 1e3, cost.EXCHANGE / 1e6
    alone, further = cost.start_cost(1) / 1e9, (cost.start_cost(2) - cost.start_cost(1)) / 1e9
    head = f"""\
Model: Qwen3-8B on H100 SXM, forward and backward, what a sequence of s tokens costs each of C ranks:
  {linear:.1f} us/token s/C + {quadratic:.2f} ns/token^2 s^2/C + {exchange:.2f} us/token s (C-1)/C
  and a micro-batch {alone:.1f} ms, with each further rank of a subgroup {further:.2f} ms more
Lengths: lognormal, {MEDIAN:,} in the median, sigma {SIGMA}, {SHORTEST:,} to {LONGEST:,}; W = {RANKS}, \
{ROOM:,} tokens for each rank.
Over the bound: the median of the drawn steps, what 1 in 20 exceeds, and the worst. Gain: the median
of what each takes over what mixed takes. Worse: steps in which mixed takes longer than that.
{"":26}{"all ranks wait after each micro-batch":>36}   {"only partners wait":>20}
{"seqs":>5} {"":20}{"median":>8} {"1/20":>6} {"worst":>6}{"gain":>8}{"worse":>6}\
  {"median":>8} {"1/20":>6}{"worse":>6}"""
    lines = [head]
    for count, steps in DRAWN:
        lines += [*compared(count, steps), f"      ({steps:,} steps)"]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="What a step takes under dynamic context parallelism.")
    parser.add_argument("--seed", type=int, default=_partition.SEED, help="of the drawn lengths")
    options = parser.parse_args(arguments)
    _partition.SEED = options.seed
    print(f"{table()}\nDrawn with seed {options.seed}.")
    return 0
