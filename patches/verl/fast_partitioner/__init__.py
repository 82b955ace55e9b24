"""`verl.fast-partitioner`: the same Karmarkar-Karp partitions in a fraction of the time."""

from typing import Any

from overlay.compat.projects import VERL
from overlay.effect import effect
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches._fast_partitioner import fast_or

EFFECT = effect(__name__, "partition", did="computed", always=True)


def make_partitioner(original: Any, _module: Any) -> Any:
    """Build verl's `karmarkar_karp`, which is given tensors too."""
    return fast_or(original, EFFECT, whole)


def whole(values: Any) -> Any:
    """Return integers, [samples], as a list; anything else, and a tensor whose sum overflows, as it is."""
    import torch

    kinds = (torch.int8, torch.int16, torch.int32, torch.int64)
    if not isinstance(values, torch.Tensor) or values.dim() != 1 or values.dtype not in kinds:
        return values
    numbers = values.tolist()
    return numbers if sum(map(abs, numbers)) <= torch.iinfo(values.dtype).max else values


PATCH = Patch(
    id="verl.fast-partitioner",
    summary="The same Karmarkar-Karp partitions, without minutes of pure Python",
    why="verl's Karmarkar-Karp sorts every partition at every merge, empty ones included: half a minute for "
    "8,192 samples in 1,451 micro-batches, on every rank and in every step. With the patch the partitions "
    "are the same, in the same order, ties included, in a fraction of a second.",
    evidence="The contract compares each partition with that of verl's own function, which runs beside it.",
    changes=("speed",),
    met="Every job whose samples are balanced: the larger the batch, the more time is saved.",
    upstream=("verl-project/verl#7279", "verl-project/verl#7281", "verl-project/verl#7553"),
    targets=one_target(
        VERL, variant("0.6", replaced("verl.utils.seqlen_balancing:karmarkar_karp", make_partitioner))
    ),
)
