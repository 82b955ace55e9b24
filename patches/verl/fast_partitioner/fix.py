"""The replacement of verl's partitioner: integers are divided fast, and all else is the original's."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any


def make_partitioner(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build `karmarkar_karp`: the original's partitions, and the original for what only it can tell."""
    from overlay.patches._partition import is_exact
    from overlay.patches._partition import karmarkar_karp as fast
    from overlay.patches.verl.fast_partitioner.effect import EFFECT

    def karmarkar_karp(seqlen_list: Any, k_partitions: int, equal_size: bool) -> Any:
        values = whole(seqlen_list)
        # Nothing to divide, or into nothing: the original has its own way to fail.
        if not len(values) or k_partitions < 1 or not is_exact(values):
            return original(seqlen_list, k_partitions, equal_size)
        EFFECT.changed += 1
        return fast(values, k_partitions, equal_size=equal_size)

    return karmarkar_karp


def whole(values: Any) -> Any:
    """Return a tensor of integers as the list of ints that adds up to the same, and anything else as it is.

    A tensor [samples] is added up in its own type. One that would overflow stays as it is too.
    """
    import torch

    kinds = (torch.int8, torch.int16, torch.int32, torch.int64)
    if not isinstance(values, torch.Tensor) or values.dim() != 1 or values.dtype not in kinds:
        return values
    numbers = values.tolist()
    return numbers if sum(map(abs, numbers)) <= torch.iinfo(values.dtype).max else values
