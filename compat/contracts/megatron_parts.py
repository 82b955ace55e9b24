"""What cases of contracts build of Megatron: small models, a step of its schedule, and relative errors."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any


def generator() -> Any:
    """Return a generator of torch's that draws the same on all ranks, by the seed that they are given."""
    import torch

    return torch.Generator().manual_seed(int(os.environ["OVERLAY_TEST_SEED"]))


def relative_error(found: Any, right: Any) -> float:
    """Return the greatest difference of two tensors, in parts of the greatest value of the right one."""
    return float((found.double() - right).abs().max() / right.abs().max())


def small_transformer(kind: Any = None, /, **settings: Any) -> Any:
    """Return Megatron's configuration of one small layer without dropout, made on the CPU.

    Args:
        kind: Its class, `TransformerConfig` unless it is given.
        settings: What the contract is about, by Megatron's names, and what it wants otherwise.

    """
    from megatron.core.transformer import TransformerConfig

    plain = {
        "num_layers": 1,
        "hidden_size": 8,
        "num_attention_heads": 2,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "use_cpu_initialization": True,
        "gradient_accumulation_fusion": False,
    }
    return (kind or TransformerConfig)(**plain | settings)


def layout() -> dict[str, int]:
    """Return over how many ranks Megatron has laid out what, by the names of its configuration."""
    from megatron.core import parallel_state

    names = ("tensor_model_parallel", "context_parallel", "expert_model_parallel")
    return {f"{name}_size": getattr(parallel_state, f"get_{name}_world_size")() for name in names}


def chunk(config: Any, forward: Callable[..., Any]) -> Any:
    """Return a chunk of a model as Megatron's schedule takes it, which is to be given its parameters.

    Args:
        config: Megatron's configuration.
        forward: What it computes. It gets the chunk first, whose `entry` is what the stage before sent.

    """
    from megatron.core.enums import ModelType
    from megatron.core.transformer.module import MegatronModule

    class Chunk(MegatronModule):
        def __init__(self) -> None:
            super().__init__(config)
            self.model_type = ModelType.encoder_or_decoder
            self.entry: Any = None

        def forward(self, *given: Any) -> Any:
            return forward(self, *given)

        def set_input_tensor(self, tensor: Any) -> None:
            self.entry = tensor[0] if isinstance(tensor, list) else tensor

    return Chunk()


def data_parallel(model: Any) -> Any:
    """Return a model in Megatron's data parallelism, which finishes gradients as in training."""
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )

    model.config.finalize_model_grads_func = finalize_model_grads
    return DistributedDataParallel(model.config, DistributedDataParallelConfig(), model)


def run_schedule(
    models: list[Any],
    forward_step: Callable[..., Any],
    data: Any,
    *,
    batches: int,
    tokens: int,
    sequences: int,
    forward_only: bool = False,
) -> None:
    """Run Megatron's own schedule of a step.

    Args:
        models: The chunks of this rank.
        forward_step: As Megatron has it: gets the iterator and a chunk, returns the output and the loss.
        data: The iterator, or a list of one for each chunk.
        batches: Number of micro-batches.
        tokens: Of a sequence.
        sequences: Of a micro-batch.
        forward_only: Whether no gradient is asked for.

    """
    from megatron.core.pipeline_parallel import get_forward_backward_func

    get_forward_backward_func()(
        forward_step_func=forward_step, data_iterator=data, model=models, num_microbatches=batches,
        seq_length=tokens, micro_batch_size=sequences, forward_only=forward_only,
    )  # fmt: skip


def router(config: Any) -> Any:
    """Return Megatron's router over its default groups, for which it has had several names, and once none."""
    from megatron.core.transformer.moe import moe_utils
    from megatron.core.transformer.moe.router import TopKRouter

    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None  # some releases forget to define it without Transformer Engine
    names = {"get_default_pg_collection": "pg_collection", "get_default_model_comm_pgs": "model_comm_pgs"}
    getter = next((get for get in names if hasattr(moe_utils, get)), None)
    made = TopKRouter(config, **({names[getter]: getattr(moe_utils, getter)()} if getter else {}))
    made.set_layer_number(1)
    return made


def knows(function: Any, parameter: str) -> bool:
    """Return whether a function of this Megatron has a parameter."""
    from inspect import signature

    return parameter in signature(function).parameters
