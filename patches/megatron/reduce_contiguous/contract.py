"""Two ranks add up tensors of any strides, forward and backward, as float64 arithmetic on one does."""

import functools
from collections.abc import Callable
from typing import Any

from overlay.compat.contracts import megatron_parts as parts
from overlay.compat.contracts.rank_cases import Cases, RankCases, within

#: Each makes a tensor that is not contiguous of one that is, of the same elements, fewer or none.
VIEWS: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda x: x,
    "transposed": lambda x: x.t(),
    "every other column": lambda x: x[:, ::2],
    "reversed dimensions": lambda x: x.reshape(3, 2, 4).permute(2, 1, 0),
    "one element expanded": lambda x: x.sum().expand(2, 5),
    "no rows": lambda x: x[:0].t(),
}


def cases(world: int) -> Cases:
    """Return a case for each view: what is off in the forward sum, and in the backward one."""
    return [
        (name, {"tensor": world}, functools.partial(_errors, world, view)) for name, view in VIEWS.items()
    ]


def _errors(world: int, view: Callable[[Any], Any]) -> dict[str, float]:
    """Return the difference from sums in float64 over what each rank has, which all ranks draw."""
    import torch
    import torch.distributed as dist
    from megatron.core.tensor_parallel import mappings

    draw, rank = parts.generator(), dist.get_rank()
    inputs = torch.randn(world, 4, 6, generator=draw, dtype=torch.float64)
    # Weights that are contiguous: the gradient of what is in front of the view is not, then.
    weights = torch.randn(world, *view(inputs[0]).shape, generator=draw, dtype=torch.float64)
    summed = mappings.reduce_from_tensor_model_parallel_region(view(inputs[rank].clone()))

    mine: Any = inputs[rank].clone().requires_grad_()
    (view(mappings.copy_to_tensor_model_parallel_region(mine)) * weights[rank]).sum().backward()
    whole: Any = torch.zeros(4, 6, dtype=torch.float64, requires_grad=True)
    (view(whole) * weights.sum(0)).sum().backward()
    return {
        "forward": float((summed - view(inputs.sum(0))).abs().sum()),
        "backward": float((mine.grad - whole.grad).abs().sum()),
    }


# Of sums in float64 of two terms of about one.
CASES = RankCases("megatron.reduce-contiguous", "the sum over ranks is wrong of a tensor", within(1e-12))
CONTRACT = CASES.contract()
