"""`verl.fast-partitioner`: the same partitions as verl's Karmarkar-Karp, in a fraction of the time."""

from typing import Any

from overlay.compat.projects import VERL
from overlay.effect import effect
from overlay.patches._fast_partitioner import making, patch_of

EFFECT = effect(__name__, "partition", did="computed", always=True)


def whole(values: Any) -> Any:
    """Return integers, [samples], as a list; anything else, and a tensor whose sum overflows, as it is."""
    import torch

    kinds = (torch.int8, torch.int16, torch.int32, torch.int64)
    if not isinstance(values, torch.Tensor) or values.dim() != 1 or values.dtype not in kinds:
        return values
    numbers = values.tolist()
    return numbers if sum(map(abs, numbers)) <= torch.iinfo(values.dtype).max else values


make_partitioner = making(EFFECT, whole)
_UPSTREAM = tuple(f"verl-project/verl#{number}" for number in (7279, 7281, 7553))
PATCH = patch_of(VERL, "0.6", make_partitioner, *_UPSTREAM)
