"""How even the shares of the SFT trainer's ranks are, beside verl's.

    ./scripts/bench shares --seed 1

Lengths are lognormal, 1,100 tokens in the median, and cut at a longest. They are drawn anew in each run
unless `--seed` says otherwise.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from statistics import median

from benches import _partition
from overlay.patches._partition import karmarkar_karp
from overlay.patches._partition.equal import equal_shares

#: Samples, ranks, the longest sample in tokens, and how many batches are drawn.
JUDGED = ((256, 4, 8192, 100), (256, 4, 16384, 100), (256, 8, 16384, 100), (4096, 8, 16384, 5))


def lengths(samples: int, longest: int, number: int = 0) -> list[int]:
    """Draw the tokens of a global batch."""
    draw = random.Random(f"{_partition.SEED}/{samples}/{longest}/{number}")  # noqa: S311 -- lengths, not secrets
    return [max(8, min(longest, round(draw.lognormvariate(7, 1)))) for _ in range(samples)]


def work(length: int) -> int:
    """Return the work of a sample by verl's estimate."""
    return 24576 * length + length**2


def most(measures: Sequence[int], shares: Sequence[Sequence[int]]) -> float:
    """Return what the largest share is over the mean."""
    sums = [sum(measures[index] for index in share) for share in shares]
    return max(sums) * len(sums) / sum(sums)


def as_loaded(costs: Sequence[int], ranks: int) -> list[list[int]]:
    """Return contiguous shares: what verl 0.7 hands out."""
    size = len(costs) // ranks
    return [list(range(start, start + size)) for start in range(0, len(costs), size)]


def evenness() -> str:
    """Return a table of the largest share of work, and of tokens, over the mean."""
    methods: dict[str, Callable[[Sequence[int], int], list[list[int]]]] = {
        "as loaded (verl 0.7)": as_loaded,
        "Karmarkar-Karp (verl 0.8)": lambda costs, ranks: karmarkar_karp(costs, ranks, equal_size=True),
        "overlay": equal_shares,
    }
    lines = [
        "largest rank / mean rank: median of random batches, and worst",
        f"{'samples':>7} {'ranks':>5} {'longest':>7}  {'shares':26}{'work':>15}{'tokens':>17}",
    ]
    for samples, ranks, longest, batches in JUDGED:
        drawn = [lengths(samples, longest, number) for number in range(batches)]
        for name, method in methods.items():
            found = [(batch, method([work(length) for length in batch], ranks)) for batch in drawn]
            by_work = [most([work(length) for length in batch], shares) for batch, shares in found]
            by_tokens = [most(batch, shares) for batch, shares in found]
            lines.append(
                f"{samples:7,} {ranks:5} {longest:7,}  {name:26}"
                f"{median(by_work):8.3f} {max(by_work):6.3f}  {median(by_tokens):8.3f} {max(by_tokens):6.3f}"
            )
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="How even the shares of the SFT trainer's ranks are.")
    parser.add_argument("--seed", type=int, default=_partition.SEED, help="of the drawn lengths")
    _partition.SEED = parser.parse_args(arguments).seed
    print(f"{evenness()}\nSeed {_partition.SEED}.")
    return 0
