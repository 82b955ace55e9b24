"""Partitions of samples into micro-batches: Karmarkar-Karp as the upstreams do it, and under a hard cap.

Pure Python on plain numbers. Indices are positions in the list of samples; what the numbers count (tokens,
FLOPs) is the caller's matter.
"""

from __future__ import annotations

from overlay.patches._partition.balance import holds
from overlay.patches._partition.capped import capped_partitions, fewest_parts
from overlay.patches._partition.differencing import is_exact, karmarkar_karp

__all__ = [
    "capped_partitions",
    "fewest_parts",
    "holds",
    "is_exact",
    "karmarkar_karp",
]
