"""Benchmark (d): the partitioner, its time beside verl's Karmarkar-Karp and its parts beside slime's.

Lengths are lognormal and end at the budget, as those of responses that are cut off do. They are drawn anew in
each run unless `--seed` says otherwise.
"""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Callable
from typing import Any, NamedTuple

from benches import _rivals
from benches._timing import Row, seconds, summary, take_turns
from overlay.patches._partition import capped_partitions, karmarkar_karp
from overlay.patches._partition.packing import first_fit
from sources.git_sources import UPSTREAMS

BUDGET = 16384
#: For everything drawn here; `--seed` sets it.
SEED = secrets.randbelow(2**31)
#: Samples, parts, of equal size or not, and how much of verl's time may be taken.
TIMED = [
    (8192, 1451, False, 1 / 50),
    (2048, 371, False, 1 / 30),
    (256, 8, False, 1),
    (4096, 8, False, 1),
    (16384, 8, False, 1),
    (256, 8, True, 1),
    (4096, 8, True, 1),
    (16384, 64, True, 1),
]
#: A capped partition of the largest case.
CAPPED_MS = 500.0
#: Above this many pairs of samples and parts, verl's takes a good part of a minute: one turn must do.
LARGE = 5_000_000


class Quality(NamedTuple):
    """How the parts of one method came out, in tokens."""

    method: str
    over: int
    largest: int
    #: The largest part of the best that could be: the longest sample, or the mean rounded up.
    bound: int
    spread: int


def lengths(count: int, scale: float = 7.5) -> list[int]:
    """Draw the tokens of `count` samples, `exp(scale)` of them in the median."""
    draw = random.Random(f"{SEED}/{count}/{scale}")  # noqa: S311 -- lengths, not secrets
    return [max(1, min(BUDGET, int(draw.lognormvariate(scale, 1)))) for _ in range(count)]


def measure(turns: int) -> list[Row]:
    """Compare with verl's function, hold the partitions to be the same, and time a capped partition."""
    try:
        from verl.utils.seqlen_balancing import karmarkar_karp as upstream
    except ImportError as error:
        raise RuntimeError(f"verl cannot be imported: {error}") from error
    rows = [against(upstream, *case, turns=turns) for case in TIMED]
    drawn = lengths(TIMED[0][0])
    needed = len(first_fit(drawn, BUDGET))
    return [
        *rows,
        row(
            f"{len(drawn):,} samples in {needed:,} capped parts / not capped",
            lambda: karmarkar_karp(drawn, needed, equal_size=False),
            lambda: capped_partitions(drawn, needed, BUDGET),
            turns,
            target=CAPPED_MS,
            held="measured",
        ),
    ]


def against(upstream: Any, count: int, parts: int, equal_size: bool, share: float, turns: int) -> Row:  # noqa: FBT001, PLR0913, PLR0917 -- a row of TIMED
    """Compare with verl's function, on the same samples, and hold the partitions to be the same."""
    drawn = lengths(count)
    found: dict[str, list[list[int]]] = {}

    def plain() -> None:
        found["plain"] = upstream(drawn, parts, equal_size)

    def ours() -> None:
        found["ours"] = karmarkar_karp(drawn, parts, equal_size=equal_size)

    kind = ", equal size" if equal_size else ""
    made = row(
        f"{count:,} samples in {parts:,} parts{kind} / verl's",
        plain,
        ours,
        1 if count * parts > LARGE else turns,
        target=share,
        held="ratio",
    )
    assert found["ours"] == found["plain"]
    return made


def row(  # noqa: PLR0913 -- the fields of a row
    name: str,
    plain: Callable[[], object],
    other: Callable[[], object],
    turns: int,
    *,
    target: float,
    held: str,
) -> Row:
    """Make a row, in milliseconds, of two functions that take turns."""
    pairs = take_turns(lambda: timed(plain), lambda: timed(other), turns)
    return summary(name, "" if held == "ratio" else "ms", pairs, scale=1e3, target=target, held=held)


def timed(call: Callable[[], object]) -> float:
    """Return how many seconds a call takes."""
    begin = seconds()
    call()
    return seconds() - begin


def cut_off(count: int) -> list[int]:
    """Draw prompts with responses of which those at half the budget were cut off."""
    draw = random.Random(f"{SEED}/{count}/cut off")  # noqa: S311 -- lengths, not secrets
    return [
        draw.randint(200, 1200) + min(BUDGET // 2, int(draw.lognormvariate(8.3, 1))) for _ in range(count)
    ]


def cases() -> list[tuple[str, list[int], int]]:
    """Return lengths and numbers of parts: what first fit needs, and that aligned up to 8 for pipelines."""
    drawn = [lengths(8192), lengths(2048), cut_off(2048), lengths(512)]
    needed = [len(first_fit(one, BUDGET)) for one in drawn]
    return [
        ("", drawn[0], needed[0]),
        ("", drawn[1], needed[1]),
        (", responses cut off at 8,192", drawn[2], needed[2]),
        ("", drawn[3], needed[3]),
        (", aligned to 8", drawn[3], -(-needed[3] // 8) * 8),
    ]


def compare(drawn: list[int], parts: int) -> list[Quality]:
    """Divide the same samples in every way, and hold this project's way to what it promises.

    That of slime 0.3.1 is left out where no repository of slime is given.
    """
    divided = {
        "Karmarkar-Karp (slime 0.2.4)": karmarkar_karp(drawn, parts, equal_size=False),
        "first fit (slime 286750aa3)": _rivals.fallback(drawn, parts, BUDGET),
    }
    if os.environ.get(UPSTREAMS["slime"].variable):
        divided["first fit, split (slime 0.3.1)"] = _rivals.scheduler(drawn, parts, BUDGET)
    divided["overlay"] = capped_partitions(drawn, parts, BUDGET)
    found = [quality(method, partitions, drawn) for method, partitions in divided.items()]
    plain, *slime, ours = found
    assert ours.over == 0
    if plain.over:
        assert ours.largest <= min(plain.largest, *(other.largest for other in slime))
        assert ours.spread <= min(other.spread for other in slime)
    return found


def quality(method: str, partitions: list[list[int]], drawn: list[int]) -> Quality:
    """Return how partitions came out."""
    sums = [sum(drawn[index] for index in part) for part in partitions]
    bound = max(*drawn, -(-sum(drawn) // len(partitions)))
    return Quality(method, sum(tokens > BUDGET for tokens in sums), max(sums), bound, max(sums) - min(sums))


def report() -> str:
    """Return how the parts come out as text in columns."""
    heading = f"parts under a budget of {BUDGET:,} tokens, seed {SEED}"
    lines = [f"{heading:52}{'over budget':>11}{'largest/bound':>15}{'max - min':>11}"]
    for about, drawn, parts in cases():
        lines.append(f"{len(drawn):,} samples in {parts:,} parts{about}")
        lines += [
            f"  {found.method:50}{found.over:11}{found.largest / found.bound:15.4f}{found.spread:11,}"
            for found in compare(drawn, parts)
        ]
    return "\n".join(lines)
