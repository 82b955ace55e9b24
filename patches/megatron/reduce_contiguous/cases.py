"""Megatron's sums over tensor parallel ranks, of tensors as adapters and heads of one's own hand them in."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

#: Each makes a tensor that is not contiguous of one that is, of the same elements, fewer or none.
VIEWS: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda x: x,
    "transposed": lambda x: x.t(),
    "every other column": lambda x: x[:, ::2],
    "reversed dimensions": lambda x: x.reshape(3, 2, 4).permute(2, 1, 0),
    "one element expanded": lambda x: x.sum().expand(2, 5),
    "no rows": lambda x: x[:0].t(),
}


def cases(world: int) -> list[tuple[str, dict[str, int], Callable[[], dict[str, float]]]]:
    """Return a case for each view: what is off in the forward sum, and in the backward one."""
    return [
        (name, {"tensor": world}, functools.partial(_errors, world, view)) for name, view in VIEWS.items()
    ]


def _errors(world: int, view: Callable[[Any], Any]) -> dict[str, float]:
    """Return the difference from sums in float64 over what each rank has, which all ranks draw."""
    import torch
    import torch.distributed as dist
    from megatron.core.tensor_parallel import mappings

    draw = torch.Generator().manual_seed(int(os.environ["OVERLAY_TEST_SEED"]))
    parts = [torch.randn(4, 6, generator=draw, dtype=torch.float64) for _ in range(world)]
    # Weights that are contiguous: the gradient of what is in front of the view is not, then.
    shape = view(parts[0]).shape
    weights = [torch.randn(shape, generator=draw, dtype=torch.float64) for _ in range(world)]
    rank = dist.get_rank()

    mine: Any = parts[rank].clone()
    given = mine.clone()
    forward = mappings.reduce_from_tensor_model_parallel_region(view(given))
    expected = view(parts[0])
    for part in parts[1:]:
        expected = expected + view(part)

    mine.requires_grad_()
    edge = mappings.copy_to_tensor_model_parallel_region(mine)
    (view(edge) * weights[rank]).sum().backward()
    whole = torch.zeros(4, 6, dtype=torch.float64)
    for weight in weights:
        leaf: Any = torch.zeros(4, 6, dtype=torch.float64, requires_grad=True)
        (view(leaf) * weight).sum().backward()
        whole += leaf.grad
    return {
        "forward": float((forward - expected).abs().sum()),
        "backward": float((mine.grad - whole).abs().sum()),
    }
