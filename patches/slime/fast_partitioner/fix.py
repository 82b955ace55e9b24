"""What takes the place of slime's Karmarkar-Karp."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any


def make_karmarkar_karp(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build `karmarkar_karp`: the same partitions, in a fraction of the time."""
    from overlay.patches._fast_partitioner import fast_or
    from overlay.patches.slime.fast_partitioner.effect import EFFECT

    return fast_or(original, EFFECT)
