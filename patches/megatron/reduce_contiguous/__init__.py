"""`megatron.reduce-contiguous`: tensors of any strides are summed over tensor parallel ranks."""

from typing import Any

from overlay.compat.projects import MEGATRON
from overlay.effect import effect
from overlay.patch import Patch, around, one_target, replaced, variant

_REDUCE = "megatron.core.tensor_parallel.mappings:_reduce"
EFFECT = effect(__name__, "sum", did="corrected", always=True)


@around
def reduce(original: Any, input_: Any, *args: Any, **kwargs: Any) -> Any:
    """Sum a contiguous copy of what is not contiguous: upstream reduces a copy too, and returns the input."""
    from megatron.core import parallel_state

    group = [*args, *kwargs.values(), None][0]
    ranks = parallel_state.get_tensor_model_parallel_world_size() if group is None else group.size()
    given = input_ if ranks == 1 else input_.contiguous()
    EFFECT.changed += given is not input_
    return original(given, *args, **kwargs)


PATCH = Patch(
    id="megatron.reduce-contiguous",
    summary="Non-contiguous tensors too are summed over tensor parallel ranks",
    why="Megatron's all-reduce over tensor parallel ranks returns a tensor that is not contiguous without "
    "the sum: each rank goes on with its own part of a gradient or an output. With the patch it is summed.",
    changes=("numbers",),
    met="Tensor parallelism, and a module beyond Megatron's own that hands a transposed, sliced or expanded "
    "tensor, or its gradient, to copy_to_ or reduce_from_tensor_model_parallel_region.",
    evidence="megatron-core 0.19 returns the tensor that it has reduced (NVIDIA/Megatron-LM#5338).",
    upstream=("NVIDIA/Megatron-LM#5338",),
    targets=one_target(MEGATRON, *(variant(name, replaced(_REDUCE, reduce)) for name in ("0.12", "0.13"))),
)
