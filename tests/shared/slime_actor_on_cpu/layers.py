"""The layers of the model: Megatron's, with attention and norms that run on a CPU, for slime's `--spec`.

Megatron's own attention without Transformer Engine refuses packed sequences and context parallelism, and its
norm refuses sequence parallelism.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build

from overlay.compat.cpu_attention import PackedAttention


class Attention(PackedAttention):
    """Attention within each sequence of a pack of slime's, whose bounds include the padding."""

    def forward(
        self, query: Any, key: Any, value: Any, *_rest: Any, packed_seq_params: Any, **_unused: Any
    ) -> Any:
        """Attend. The shapes are those of `PackedAttention.forward`."""
        bounds: Any = SimpleNamespace(cu_seqlens_q_padded=packed_seq_params.cu_seqlens_q)
        return super().forward(query, key, value, packed_seq_params=bounds)


class Norm(torch.nn.RMSNorm):
    """An RMS norm by the keywords of Megatron's norms, marked for sequence parallelism."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_unused: Any) -> None:
        super().__init__(hidden_size, eps=eps)
        vars(self.weight)["sequence_parallel"] = config.sequence_parallel


def layer_spec(args: Any, config: Any, vp_stage: int | None) -> TransformerBlockSubmodules:
    """Return the parts of the decoder of one stage."""
    layer = get_gpt_layer_local_spec(num_experts=args.num_experts, normalization="RMSNorm")
    layer.submodules.self_attention.submodules.core_attention = Attention
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = Norm
    count = get_num_layers_to_build(config, vp_stage=vp_stage)
    return TransformerBlockSubmodules(layer_specs=[layer] * count, layer_norm=Norm)
