"""What contracts build of Megatron: one rank of it, small models, optimizers, and steps of its schedule."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from overlay.patch import Contract
from overlay.testing import with_patches


def on_one_rank(look: Callable[..., str]) -> Callable[..., str]:
    """Run a function of a seed on Megatron's parallel state of one rank, with that seed for torch."""

    @functools.wraps(look)
    def looked(seed: str, **named: Any) -> str:
        import torch

        from overlay.compat.megatron_on_cpu import megatron

        with megatron():
            torch.manual_seed(int(seed) % 2**31)
            return look(seed, **named)

    return looked


def contract(patch: str, wrong: Callable[[str], str]) -> Contract:
    """Return the contract of a patch that holds where `wrong` finds nothing, given a seed."""
    return Contract(check=with_patches(wrong, patch), before=("torch",))


def generator() -> Any:
    """Return a generator of torch's that draws the same on all ranks, by the seed that they are given."""
    import torch

    return torch.Generator().manual_seed(int(os.environ["OVERLAY_TEST_SEED"]))


def relative_error(found: Any, right: Any) -> float:
    """Return the greatest difference of two tensors, in parts of the greatest value of the right one."""
    return float((found.double() - right).abs().max() / right.abs().max())


def small_transformer(kind: Any = None, /, **settings: Any) -> Any:
    """Return Megatron's configuration of one small layer without dropout, made on the CPU.

    `kind`: its class, `TransformerConfig` unless it is given. `settings`: what the contract is about, by
    Megatron's names, and what it wants otherwise.
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

    `config`: Megatron's configuration. `forward`: what it computes. It gets the chunk first, whose `entry` is
    what the stage before sent.
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


def data_parallel(model: Any, **settings: Any) -> Any:
    """Return a model in Megatron's data parallelism with some settings, which finishes gradients."""
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )

    model.config.finalize_model_grads_func = finalize_model_grads
    return DistributedDataParallel(model.config, DistributedDataParallelConfig(**settings), model)


def optimizer(model: Any, overrides: Any = None, *, gloo: bool = True, **settings: Any) -> Any:
    """Return Megatron's optimizer of a model in its data parallelism: Adam, unless settings say otherwise.

    `overrides` are of groups of parameters, and `gloo` asks for the groups that checkpoints need.
    """
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    plain = {"optimizer": "adam", "weight_decay": 0.0, "clip_grad": 0.0}
    options = {} if overrides is None else {"config_overrides": overrides}
    if not gloo and knows(get_megatron_optimizer, "use_gloo_process_groups"):
        options["use_gloo_process_groups"] = False
    return get_megatron_optimizer(OptimizerConfig(**plain | settings), [model], **options)


def predicting_further(config: Any, tokens: int, vocabulary: int) -> Any:
    """Return Megatron's GPT model with multi-token prediction, without attention and dropout.

    Megatron's own attention in plain torch knows no context parallelism.
    """
    import torch
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec, get_gpt_mtp_block_spec
    from megatron.core.transformer.enums import AttnMaskType
    from megatron.core.transformer.spec_utils import ModuleSpec

    class NoAttention(torch.nn.Module):
        def __init__(self, *_: object, **__: object) -> None:
            super().__init__()

        def forward(self, hidden: Any, *_: object, **__: object) -> tuple[Any, None]:
            return hidden, None

    spec = get_gpt_layer_local_spec()
    causal = {"attn_mask_type": AttnMaskType.causal}
    spec.submodules.self_attention = ModuleSpec(module=NoAttention, params=causal)
    extra = get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False)
    place = "learned_absolute"
    return GPTModel(config, spec, vocabulary, tokens, mtp_block_spec=extra, position_embedding_type=place)


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
