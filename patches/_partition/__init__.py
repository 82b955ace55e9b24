"""Partitions of samples into micro-batches: Karmarkar-Karp as the upstreams do it, and under a hard cap.

Pure Python. Indices are places in the list of samples; numbers are of any unit, such as tokens or FLOPs.
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
