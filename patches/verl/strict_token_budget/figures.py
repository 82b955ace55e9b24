"""A figure for reports: the tokens of each micro-batch of a drawn batch, without the patch and with it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from overlay.patches._partition import capped_partitions, fewest_parts, karmarkar_karp

#: Of the drawn batch: its samples, the tokens of the longest, the median's logarithm, and the seed.
SAMPLES, BUDGET, SCALE, SEED = 256, 16384, 8.0, 0


def figures() -> list[dict[str, Any]]:
    """Return what a report draws. It is computed then: no upstream is needed."""
    draw = random.Random(SEED)  # noqa: S311 -- lengths, not secrets
    drawn = [max(1, min(BUDGET, int(draw.lognormvariate(SCALE, 1)))) for _ in range(SAMPLES)]
    before, after = divided(drawn, BUDGET)
    title = f"Tokens of each micro-batch: {SAMPLES} samples, drawn with seed {SEED}"
    series = {"verl 0.8.0": before, "with overlay": after}
    return [{"kind": "micro-batches", "title": title, "budget": BUDGET, "series": series}]


def divided(drawn: Sequence[int], budget: int) -> tuple[list[int], list[int]]:
    """Return the tokens of each micro-batch, the fullest first, without the patch and with it.

    Without is what verl 0.8.0 does: Karmarkar-Karp on the FLOPs of the samples, in as many micro-batches as
    the sum of their tokens asks for. With is the same under the budget, in as few as that takes.
    """
    flops = [24576 * length + length**2 for length in drawn]
    count = -(-sum(drawn) // budget)
    before = karmarkar_karp(flops, count, equal_size=False)
    fewest = fewest_parts(drawn, budget, at_least=count, costs=flops)
    after = capped_partitions(drawn, fewest, budget, costs=flops)
    first, second = (
        sorted((sum(drawn[index] for index in part) for part in parts), reverse=True)
        for parts in (before, after)
    )
    return first, second
