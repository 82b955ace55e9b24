"""What the partitioner is measured against: how slime packs samples under a budget.

slime is in no package index. If SLIME_REPO names a repository of it (see git_sources.py), its own functions
of v0.3.1 run; if not, a few lines with the same result do.
"""

from __future__ import annotations

import os
import runpy
from typing import TYPE_CHECKING

from sources.fetch_source import fetch

if TYPE_CHECKING:
    from collections.abc import Sequence


def fallback(lengths: Sequence[int], parts: int, cap: int) -> list[list[int]]:
    """Return what slime 286750aa3 falls back to: first fit, and what it does not need left empty."""
    packed = first_fit(lengths, cap)
    return packed + [[] for _ in range(parts - len(packed))]


def scheduler(lengths: Sequence[int], parts: int, cap: int) -> list[list[int]]:
    """Return what slime 0.3.1 schedules: first fit, then the largest parts split until there are enough."""
    if not os.environ.get("SLIME_REPO"):
        return split(first_fit(lengths, cap), parts, lengths)
    module = runpy.run_path(str(fetch("slime", "v0.3.1") / "slime/utils/seqlen_balancing.py"))
    bins: list[list[int]] = module["first_fit_pack"](lengths, cap)
    module["expand_bins_by_splitting"](bins, parts, lengths)
    return bins


def first_fit(lengths: Sequence[int], cap: int) -> list[list[int]]:
    """Put each sample, in order, into the first part with room for it, or into a new one."""
    parts: list[list[int]] = []
    sums: list[int] = []
    for index, length in enumerate(lengths):
        place = next((place for place, tokens in enumerate(sums) if tokens + length <= cap), len(sums))
        if place == len(sums):
            parts.append([])
            sums.append(0)
        parts[place].append(index)
        sums[place] += length
    return parts


def split(parts: list[list[int]], count: int, lengths: Sequence[int]) -> list[list[int]]:
    """Split the largest part of several samples, each to the emptier half, until there are `count` parts."""
    parts = list(parts)
    while len(parts) < count:
        sized = ((sum(lengths[i] for i in part), at) for at, part in enumerate(parts) if len(part) > 1)
        _, largest = max(sized)
        sides: tuple[list[int], list[int]] = ([], [])
        sums = [0, 0]
        for index in sorted(parts[largest], key=lambda index: -lengths[index]):
            side = int(sums[0] > sums[1])
            sides[side].append(index)
            sums[side] += lengths[index]
        parts[largest] = sides[0]
        parts.append(sides[1])
    return parts
