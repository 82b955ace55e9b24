"""What the partitioner is measured against: how slime packs samples under a budget."""

from __future__ import annotations

import runpy
from collections.abc import Sequence

from overlay.patches._partition.packing import first_fit
from sources.git_sources import fetch


def fallback(lengths: Sequence[int], parts: int, cap: int) -> list[list[int]]:
    """Return what slime 286750aa3 falls back to: first fit, and what it does not need left empty."""
    packed = first_fit(lengths, cap)
    return packed + [[] for _ in range(parts - len(packed))]


def scheduler(lengths: Sequence[int], parts: int, cap: int) -> list[list[int]]:
    """Return what slime 0.3.1 schedules: first fit, then the largest parts split until there are enough.

    By its own functions, from where `SLIME_REPO` says. Raises `FetchError`.
    """
    module = runpy.run_path(str(fetch("slime", "v0.3.1") / "slime/utils/seqlen_balancing.py"))
    bins: list[list[int]] = module["first_fit_pack"](lengths, cap)
    module["expand_bins_by_splitting"](bins, parts, lengths)
    return bins
