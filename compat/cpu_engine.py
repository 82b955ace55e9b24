"""verl's Megatron engine around a tiny language model, on CPU ranks under gloo.

The engine, the loss functions, the schedule, data parallelism and the model are upstream's own. Replaced are:

- CUDA (`cuda_on_cpu`), and the one attention layer that has no CPU version (`cpu_attention`);
- loading a checkpoint: the engine is made without its `__init__`, and the weights are random;
- with sequence parallelism, CUDA's random state, and the norms, whose version for the CPU refuses it;
- where Megatron cannot be asked for dynamic context parallel groups, as no release can without
  `megatron.dynamic-cp-names`, the groups and their getter.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.workers.config import McoreEngineConfig
from verl.workers.engine.megatron.transformer_impl import MegatronEngineWithLMHead

from overlay.compat import verl_imports
from overlay.compat.cpu_attention import PackedAttention
from overlay.compat.cpu_reference import CHOSEN
from overlay.compat.cuda_on_cpu import cuda_on_cpu, replaced

#: Sizes of the model. Small, but each has a value of its own, so that a mixed-up axis is an error.
VOCABULARY, HIDDEN, HEADS, LAYERS = 24, 16, 4, 2


@contextlib.contextmanager
def cpu_ranks(timeout: float = 120.0) -> Iterator[None]:
    """Start gloo for the ranks that torchrun started, and end it.

    `timeout`: seconds after which a collective that not all ranks enter is an error.
    """
    gemm = vars(moe_utils).get("te_general_gemm")  # which 0.16 asks for though it could not import it
    with cuda_on_cpu(), replaced(moe_utils, "te_general_gemm", gemm), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.init_process_group("gloo", timeout=timedelta(seconds=timeout))
        try:
            yield
        finally:
            dist.destroy_process_group()


@contextlib.contextmanager
def parallel_state(
    tensor: int = 1, pipeline: int = 1, *, expert: int = 1, virtual: int | None = None
) -> Iterator[None]:
    """Lay out the running ranks as Megatron's groups, with the dynamic ones, for as long as this lasts.

    `tensor`: tensor parallel size. `pipeline`: pipeline parallel size. All other ranks are data parallel.
    `expert`: expert parallel size, a divisor of the data parallel one. `virtual`: stages of the pipeline on
    each of its ranks.
    """
    ranks = dist.get_world_size() // (tensor * pipeline)
    known = "dynamic_context_parallel" in inspect.signature(mpu.initialize_model_parallel).parameters
    # Of other numbers of ranks Megatron makes none, and no case asks for them.
    settings = {"dynamic_context_parallel": True} if known and not ranks & (ranks - 1) else {}
    mpu.initialize_model_parallel(
        tensor,
        pipeline,
        virtual,
        expert_model_parallel_size=expert,
        create_gloo_process_groups=False,
        **settings,
    )
    groups = contextlib.nullcontext() if known else dynamic_groups()
    try:
        # Sequence parallelism keeps a random state of its own for dropout, on CUDA. Here nothing is dropped.
        with groups, replaced(CudaRNGStatesTracker, "fork", _no_fork):
            yield
    finally:
        mpu.destroy_model_parallel()


@contextlib.contextmanager
def dynamic_groups() -> Iterator[None]:
    """Give Megatron's parallel state the getter of dynamic context parallel groups, and the groups.

    A data parallel group of W ranks is cut into runs of C neighbours, for each power of two up to W, and no
    other: to ask for another is a `KeyError`, as it is with Megatron's own groups.
    """
    own: dict[int, Any] = {}
    members: list[list[int] | None] = [None] * dist.get_world_size()
    dist.all_gather_object(members, dist.get_process_group_ranks(mpu.get_data_parallel_group()))
    whole = sorted({tuple(group) for group in members if group})
    ranks = len(whole[0])
    for size in (2**exponent for exponent in range(ranks.bit_length())):
        for group in whole:
            for start in range(0, ranks, size):
                # Creating a group is collective: all ranks create all of them, in the same order.
                part = group[start : start + size]
                handle = dist.new_group(list(part))
                if dist.get_rank() in part:
                    own[size] = handle

    def get_dynamic_data_context_parallel_groups(check_initialized: bool = True, group_size: int = 1) -> Any:
        """Return this rank's group of `group_size` neighbours."""
        del check_initialized
        return own[group_size]

    getter = get_dynamic_data_context_parallel_groups
    with replaced(mpu, getter.__name__, getter):
        yield


@dataclasses.dataclass(frozen=True)
class Shape:
    """What a model can be made of beyond the plainest: its sizes are always the same."""

    #: Groups of queries that share a key and a value; a divisor of `HEADS`.
    groups: int = HEADS
    #: Whether queries and keys are turned by their positions.
    rope: bool = False
    #: "LayerNorm" or "RMSNorm".
    norm: str = "LayerNorm"
    #: What is recomputed in the backward pass: nothing (""), each layer ("full"), or its attention ("core").
    recompute: str = ""
    #: The class of the attention itself.
    core_attention: Any = PackedAttention
    #: Experts of each layer, of which the `cpu_reference.CHOSEN` best compute a token; 0 for a dense model.
    experts: int = 0
    #: Layers of the whole model.
    layers: int = LAYERS
    #: In which the model computes.
    dtype: torch.dtype = torch.float32


_RECOMPUTE: dict[str, dict[str, Any]] = {
    "": {},
    "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
    "core": {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]},
}


class SequenceParallelNorm(torch.nn.LayerNorm):
    """A layer norm for sequence parallelism, built with the keywords of Megatron's norms.

    Megatron's own norm without Transformer Engine and Apex refuses sequence parallelism, only because it does
    not mark its parameters. Each tensor parallel rank norms its own tokens, so the gradients of a norm are
    partial, and Megatron adds up those of the parameters that are marked.
    """

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_unused: Any) -> None:
        if config.normalization != "LayerNorm" or config.layernorm_zero_centered_gamma:
            raise NotImplementedError("only a plain LayerNorm is stood in for")
        super().__init__(hidden_size, eps=eps)
        for parameter in self.parameters():
            vars(parameter)["sequence_parallel"] = True


def _experts(count: int) -> dict[str, Any]:
    """Return Megatron's settings for so many experts. They have no biases, which its dispatcher refuses."""
    if not count:
        return {}
    return {
        "num_moe_experts": count,
        "moe_router_topk": CHOSEN,
        "moe_router_load_balancing_type": "none",
        "expert_model_parallel_size": mpu.get_expert_model_parallel_world_size(),
        "add_bias_linear": False,
    }


def build_engine(
    *,
    cap: int | None,
    dynamic: bool = True,
    seed: int = 0,
    per_token_loss: bool = False,
    sequence_parallel: bool = False,
    shape: Shape | None = None,
    engine_class: Any = MegatronEngineWithLMHead,
    transformer: dict[str, Any] | None = None,
    ddp: dict[str, Any] | None = None,
    adapt: Callable[[Any], None] | None = None,
    **settings: Any,
) -> Any:
    """Return verl's engine around a fresh tiny model, without optimizer and checkpoints.

    Args:
        cap: `max_seqlen_per_dp_cp_rank`, in tokens.
        dynamic: Whether dynamic context parallelism is on.
        seed: Of the weights. The same on all ranks.
        per_token_loss: Megatron's `calculate_per_token_loss`, which makes data parallelism add up
            gradients instead of averaging them.
        sequence_parallel: Whether tensor parallel ranks share the tokens between their layers.
        shape: Of the model, if it is not to be the plainest one.
        engine_class: The engine to build.
        transformer: Further fields of Megatron's `TransformerConfig`.
        ddp: Fields of Megatron's `DistributedDataParallelConfig`.
        adapt: Is called with each part of the model before data parallelism sees its parameters.
        settings: Further fields of verl's `McoreEngineConfig`.

    """
    tensor = mpu.get_tensor_model_parallel_world_size()
    pipeline = mpu.get_pipeline_model_parallel_world_size()
    virtual = mpu.get_virtual_pipeline_model_parallel_world_size()
    torch.manual_seed(seed)
    shape = shape or Shape()
    config = TransformerConfig(
        num_layers=shape.layers, hidden_size=HIDDEN, ffn_hidden_size=3 * HIDDEN, num_attention_heads=HEADS,
        num_query_groups=shape.groups, normalization=shape.norm,
        **_RECOMPUTE[shape.recompute], **_experts(shape.experts),
        hidden_dropout=0.0, attention_dropout=0.0, init_method_std=0.1, use_cpu_initialization=True,
        gradient_accumulation_fusion=False, bias_dropout_fusion=False, bias_activation_fusion=False,
        tensor_model_parallel_size=tensor, pipeline_model_parallel_size=pipeline,
        virtual_pipeline_model_parallel_size=virtual, sequence_parallel=sequence_parallel,
        # As verl has it: without overlap Megatron cannot interleave the stages of two ranks.
        overlap_p2p_comm=virtual is not None, batch_p2p_comm=virtual is None,
        params_dtype=shape.dtype, pipeline_dtype=shape.dtype, bf16=shape.dtype is torch.bfloat16,
        variable_seq_lengths=True, calculate_per_token_loss=per_token_loss,
        moe_token_dispatcher_type="alltoall",  # noqa: S106 - no password
        # verl tells the model the widest context parallelism it can meet
        context_parallel_size=mpu.get_data_parallel_world_size() if dynamic else 1,
    )  # fmt: skip
    config = dataclasses.replace(config, **(transformer or {}))
    config.finalize_model_grads_func = finalize_model_grads
    layers = get_gpt_layer_local_spec(num_experts=shape.experts or None, normalization=shape.norm)
    layers.submodules.self_attention.submodules.core_attention = shape.core_attention
    if sequence_parallel:
        layers.submodules.input_layernorm = layers.submodules.pre_mlp_layernorm = SequenceParallelNorm
        built = [layers] * get_num_layers_to_build(config)
        layers = TransformerBlockSubmodules(layer_specs=built, layer_norm=SequenceParallelNorm)
    parts = []
    for stage in range(virtual or 1):
        place = {"ignore_virtual": False, "vp_stage": stage} if virtual else {}
        model = GPTModel(
            config, layers, vocab_size=VOCABULARY, max_sequence_length=4096,
            pre_process=mpu.is_pipeline_first_stage(**place),
            post_process=mpu.is_pipeline_last_stage(**place),
            position_embedding_type="rope" if shape.rope else "none",
            share_embeddings_and_output_weights=False, vp_stage=stage if virtual else None,
        )  # fmt: skip
        _randomise(model)
        if adapt is not None:
            adapt(model)
        wrapped = Float16Module(config, model) if config.bf16 else model
        parts.append(DistributedDataParallel(config, DistributedDataParallelConfig(**(ddp or {})), wrapped))
    engine = engine_class.__new__(engine_class)
    engine.tf_config = config
    engine.module = parts
    engine.model_config = SimpleNamespace(
        hf_config=SimpleNamespace(architectures=["TinyForCausalLM"]),
        tokenizer=SimpleNamespace(pad_token_id=0),
        mtp=SimpleNamespace(enable=False, enable_train=False),
        model_type="language_model",
    )
    engine.is_value_model = False
    engine.mini_layer_topk_idx_list = []
    engine.engine_config = McoreEngineConfig(
        dynamic_context_parallel=dynamic, max_seqlen_per_dp_cp_rank=cap,
        tensor_model_parallel_size=tensor, pipeline_model_parallel_size=pipeline,
        virtual_pipeline_model_parallel_size=virtual, sequence_parallel=sequence_parallel,
        expert_model_parallel_size=mpu.get_expert_model_parallel_world_size(),
        **{"use_remove_padding": True, **settings},
    )  # fmt: skip
    return engine


def random_batch(lengths: Sequence[int], *, seed: int, silent: int = 0, **settings: Any) -> TensorDict:
    """Return a batch for verl's engine: random tokens, and a random loss mask behind a prompt of one token.

    `lengths`: tokens per sequence, at least 2. `seed`: of tokens and mask. The same on all ranks. `silent`:
    sequences, the last ones, of which no token counts in the loss. `settings`: verl's own settings of a
    batch, such as `micro_batch_size_per_gpu`.
    """
    random = torch.Generator().manual_seed(seed)
    tokens = [torch.randint(0, VOCABULARY, (length,), generator=random) for length in lengths]
    masks = [torch.randint(0, 2, (length,), generator=random) for length in lengths]
    for mask in masks:
        mask[0] = 0
        mask[-1] = 1
    for mask in masks[len(masks) - silent :]:
        mask[:] = 0
    batch = TensorDict({"input_ids": nested(tokens), "loss_mask": nested(masks)}, batch_size=len(lengths))
    defaults = {
        "temperature": 1.0,
        "use_dynamic_bsz": False,
        "micro_batch_size_per_gpu": len(lengths),
        "global_batch_size": len(lengths),
    }
    return tu.assign_non_tensor(batch, **{**defaults, **settings})


def nested(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the rows as one nested (jagged) tensor."""
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


def train(engine: Any, batch: TensorDict, loss: Callable[..., Any]) -> dict[str, Any]:
    """Run one forward and backward of the engine on fresh gradients, and return the engine's output."""
    for chunk in engine.module:
        chunk.train()
        chunk.zero_grad_buffer()
    output: dict[str, Any] = engine.forward_backward_batch(batch, loss, forward_only=False)
    return output


def infer(engine: Any, batch: TensorDict, loss: Callable[..., Any] | None = None) -> dict[str, Any]:
    """Run a forward pass without gradients, and return the engine's output."""
    for chunk in engine.module:
        chunk.eval()
    with torch.no_grad():
        output: dict[str, Any] = engine.forward_backward_batch(batch, loss, forward_only=True)
    return output


def reported_metrics(engine: Any, output: dict[str, Any]) -> dict[str, Any]:
    """Return what verl's training worker makes of an engine's output; the entry "loss" is what it logs.

    To be called where the worker calls it: on ranks with `engine.is_mp_src_rank_with_outputs()`.
    """
    # The web servers of its inference engines, where they are not installed.
    verl_imports.stand_in_for("fastapi", "uvicorn")
    from verl.workers.engine_workers import TrainingWorker

    worker = SimpleNamespace(engine=engine, device_name="cpu", flops_counter=None)
    final = TrainingWorker._postprocess_output(  # noqa: SLF001 - it is this step that is tested
        worker, dict(output), global_token_num=None, delta_time=1.0, forward_only=False, images_seqlens=None
    )
    metrics: dict[str, Any] = tu.get(final, "metrics")
    return metrics


def full_tensors(
    engine: Any, read: Callable[[Any], torch.Tensor], *, trainable: bool = False
) -> dict[str, torch.Tensor]:
    """Return `read(parameter)` of every parameter of the whole model, put together from all ranks.

    Args:
        engine: An engine of `build_engine`.
        read: Such as `lambda parameter: parameter.main_grad`.
        trainable: Whether to leave out the parameters that are frozen.

    Raises:
        ValueError: Two ranks that should hold the same values differ.

    """
    own = []
    for model, name, parameter in _parameters(engine):
        if trainable and not parameter.requires_grad:
            continue
        dimension = parameter.partition_dim if getattr(parameter, "tensor_model_parallel", False) else None
        shard = mpu.get_tensor_model_parallel_rank() if dimension is not None else 0
        value = read(parameter).detach()
        # As arrays: pickling tensors would take a quarter of the time of all cases. They have no bfloat16.
        array = (value.float() if value.dtype is torch.bfloat16 else value).numpy()
        own.append((_global_name(model, name), shard, dimension, array))
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    shards: dict[str, dict[int, torch.Tensor]] = {}
    dimensions: dict[str, int | None] = {}
    for name, shard, dimension, array in (entry for part in everyone for entry in part):
        dimensions[name] = dimension
        value = torch.from_numpy(array)
        if not torch.equal(shards.setdefault(name, {}).setdefault(shard, value), value):
            msg = f"ranks that replicate {name} hold different values"
            raise ValueError(msg)
    return {
        name: torch.cat([parts[index] for index in sorted(parts)], dim=dimensions[name] or 0)
        for name, parts in shards.items()
    }


def weights_of(engine: Any) -> dict[str, torch.Tensor]:
    """Return the whole model's weights by name."""
    return full_tensors(engine, lambda parameter: parameter)


def gradients_of(engine: Any) -> dict[str, torch.Tensor]:
    """Return the whole model's gradients by name, as data parallelism has left them."""
    return full_tensors(engine, lambda parameter: parameter.main_grad, trainable=True)


def compare(gradients: dict[str, torch.Tensor], reference: dict[str, torch.Tensor]) -> tuple[float, float]:
    """Return |g| / |g_ref| and |g - g_ref| / |g_ref|, over all parameters as one vector, in float64."""
    if gradients.keys() != reference.keys():
        msg = f"not the same parameters: {sorted(gradients.keys() ^ reference.keys())}"
        raise ValueError(msg)
    got = torch.cat([gradients[name].double().flatten() for name in reference])
    want = torch.cat([value.double().flatten() for value in reference.values()])
    return (got.norm() / want.norm()).item(), ((got - want).norm() / want.norm()).item()


def _no_fork(tracker: Any, *names: str, **named: str) -> contextlib.nullcontext[None]:
    """Stand in for the change to another random state of CUDA."""
    return contextlib.nullcontext()


def _parameters(engine: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yield each parameter of this rank, after the part of the model that holds it, and its name there."""
    for part in engine.module:
        model = part.module
        if isinstance(model, Float16Module):
            model = model.module
        for name, parameter in model.named_parameters():
            yield model, name, parameter


def _global_name(model: Any, name: str) -> str:
    """Return the parameter's name in the whole model: a stage counts its layers, and a rank its experts."""
    prefix = "decoder.layers."
    if not name.startswith(prefix):
        return name
    index, rest = name.removeprefix(prefix).split(".", 1)
    layer = model.decoder.layers[int(index)]
    experts = "mlp.experts.local_experts."
    if rest.startswith(experts):
        expert, rest = rest.removeprefix(experts).split(".", 1)
        rest = f"{experts}{layer.mlp.local_expert_indices[int(expert)]}.{rest}"
    return f"{prefix}{layer.layer_number - 1}.{rest}"


def _randomise(model: Any) -> None:
    """Give norms and biases, which start as ones and zeros, values that a mistake would show in.

    And experts values of their own: ranks draw those they hold from the same random state.
    """
    for name, parameter in model.named_parameters():
        expert = ".local_experts." in name
        if parameter.dim() == 1 or expert:
            sharded = getattr(parameter, "tensor_model_parallel", False)
            shard = mpu.get_tensor_model_parallel_rank() if sharded else 0
            # From the name, as a pipeline stage does not know how much the others have drawn.
            seed = zlib.crc32(f"{_global_name(model, name)}/{shard}".encode())
            random = torch.Generator().manual_seed(seed)
            noise = torch.randn(parameter.shape, generator=random) * 0.2
            parameter.data.add_(noise.to(parameter.dtype))
