"""Weights drawn by their names, in place of those of a checkpoint: the same in every layout.

slime asks for them with the folder of a Hugging Face model, and the function that would read one is replaced.
The full tensor is drawn, and a rank takes its part along the dimension in which Megatron says that it is cut.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch


def replace_checkpoint() -> None:
    """Replace what loads a Hugging Face model, wherever slime asks for a checkpoint."""
    from slime.backends.megatron_utils import checkpoint

    vars(checkpoint)["_load_checkpoint_hf"] = load


def load(ddp_model: Any, optimizer: Any, args: Any, load_path: str) -> tuple[int, int]:
    """Fill a model with the weights of the actor, the critic, or, if there is no optimizer, the reference.

    Returns:
        The iteration that the weights are of, and the operations up to then: 0 and 0.

    """
    del load_path
    model = "ref" if optimizer is None else getattr(ddp_model[0], "role", "actor")
    with torch.no_grad():
        for name, parameter in named(args, ddp_model):
            full = drawn(args.seed, model, name, full_shape(parameter))
            parameter.copy_(own_part(full, parameter))
    if optimizer is not None:
        optimizer.reload_model_params()
    return 0, 0


def named(args: Any, model: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the parameters of this rank under the names that they have in the whole model."""
    from slime.backends.megatron_utils.update_weight.common import named_params_and_buffers

    for name, tensor in named_params_and_buffers(args, model, convert_to_global_name=True):
        if isinstance(tensor, torch.nn.Parameter):
            yield name.removeprefix("module.module."), tensor


def drawn(seed: int, model: str, name: str, shape: Sequence[int]) -> torch.Tensor:
    """Return a weight in float32: a matrix that keeps the size of what it multiplies, or gains near 1."""
    made = torch.Generator().manual_seed(zlib.crc32(f"{seed} {model} {name}".encode()))
    values = torch.randn(*shape, generator=made)
    return values / math.sqrt(shape[-1]) if len(shape) > 1 else 1 + values / 8


def full_shape(parameter: Any) -> list[int]:
    """Return the shape of a parameter on all tensor parallel ranks together."""
    from megatron.core import mpu

    shape = list(parameter.shape)
    if _cut(parameter):
        shape[parameter.partition_dim] *= mpu.get_tensor_model_parallel_world_size()
    return shape


def own_part(full: torch.Tensor, parameter: Any) -> torch.Tensor:
    """Return this rank's part of what has the full shape of a parameter."""
    from megatron.core import mpu

    if not _cut(parameter):
        return full
    parts = full.chunk(mpu.get_tensor_model_parallel_world_size(), parameter.partition_dim)
    own: torch.Tensor = parts[mpu.get_tensor_model_parallel_rank()]
    return own


def _cut(parameter: Any) -> bool:
    return getattr(parameter, "tensor_model_parallel", False) and parameter.partition_dim >= 0
