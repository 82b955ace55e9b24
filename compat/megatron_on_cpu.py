"""A Megatron of one rank on a CPU, and its MoE layer, for contracts and checks of patches.

Import this before Megatron. What runs under it runs in a process of its own, with one release first on the
path, so nothing here is put back.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

#: Megatron compiles its activations. Nothing that is tested here depends on that, and it takes a compiler.
os.environ["TORCHDYNAMO_DISABLE"] = "1"

import torch
import torch._dynamo
import torch.distributed as dist

from overlay.compat.cuda_on_cpu import cuda_on_cpu
from overlay.compat.no_triton import no_triton

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Tokens of a sequence, sequences, hidden size. Each has a value of its own.
TOKENS, SEQUENCES, HIDDEN = 64, 2, 32
EXPERTS, VOCABULARY = 4, 48


class _NoTracker:
    """Megatron's tracker of random states on the device, with none to track."""

    def get_states(self) -> dict[str, object]:
        return {}

    def set_states(self, _states: object) -> None:
        pass

    def is_initialized(self) -> bool:
        return True

    @contextlib.contextmanager
    def fork(self, _name: str = "") -> Any:
        yield


@contextlib.contextmanager
def megatron() -> Iterator[None]:
    """Stand in for the device and for Triton, and run Megatron's parallel state of a single rank."""
    with cuda_on_cpu(), no_triton():
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            start_megatron()
            yield
        finally:
            dist.destroy_process_group()


def start_megatron(**sizes: int) -> None:
    """Make Megatron's parallel state for the ranks that torch.distributed has.

    They are data parallel, but for what `sizes` says by the names that Megatron has for it.
    """
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.moe import moe_utils

    if parallel_state.model_parallel_is_initialized():  # of a group that is gone
        parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(**sizes)
    random._set_cuda_rng_state = lambda *_args, **_kwargs: None
    random.initialize_rng_tracker()
    random._CUDA_RNG_STATE_TRACKER = _NoTracker()
    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None  # some releases forget to define it without Transformer Engine


def moe_layer(dispatcher: str) -> Any:
    """Build Megatron's transformer layer with four experts; the same weights at each call."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.spec_utils import build_module

    torch.manual_seed(1)
    spec = get_gpt_layer_local_spec(num_experts=EXPERTS, moe_grouped_gemm=False)
    config = _config(
        moe_token_dispatcher_type=dispatcher,
        moe_router_load_balancing_type="aux_loss",
        moe_aux_loss_coeff=0.01,
    )
    return build_module(spec, config=config, layer_number=1)


def mtp_model() -> Any:
    """Build Megatron's GPT model with multi-token prediction and full recomputation; weights as above."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec, get_gpt_mtp_block_spec

    torch.manual_seed(1)
    config = _config(
        moe_token_dispatcher_type="alltoall",  # noqa: S106 -- no password
        moe_router_load_balancing_type="none",  # Megatron's log of such losses has room for one kind of model
        recompute_granularity="full",
        recompute_method="uniform",
        recompute_num_layers=1,
        mtp_num_layers=1,
        mtp_loss_scaling_factor=0.1,
    )
    spec = get_gpt_layer_local_spec(num_experts=EXPERTS, moe_grouped_gemm=False)
    extra = get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False)
    return GPTModel(config, spec, VOCABULARY, TOKENS, mtp_block_spec=extra, position_embedding_type="rope")


def _config(**options: Any) -> Any:
    from megatron.core.transformer import TransformerConfig

    return TransformerConfig(
        num_layers=1,
        hidden_size=HIDDEN,
        num_attention_heads=2,
        ffn_hidden_size=4 * HIDDEN,
        moe_ffn_hidden_size=4 * HIDDEN,
        num_moe_experts=EXPERTS,
        moe_router_topk=2,
        add_bias_linear=False,
        gated_linear_unit=True,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        use_cpu_initialization=True,
        **options,
    )


def causal_mask() -> torch.Tensor:
    """Return [1, 1, tokens, tokens], true where a token may not look."""
    return torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool).triu(1)
