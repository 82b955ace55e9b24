"""Layers of slime's that every rank runs on all tokens, as it runs Gated DeltaNet, for slime's `--spec`.

The gather, and what each rank keeps, are slime's own. In the place of the kernels is a causal mixing, whose
output at a token depends on all tokens of its sequence up to it.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from megatron.core.transformer.spec_utils import ModuleSpec
from slime_plugins.models.hf_attention import HuggingfaceAttention

from slime_actor_on_cpu import layers

if TYPE_CHECKING:
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules


class Mixing(HuggingfaceAttention):
    """A causal mixing of the tokens of each sequence, in place of attention."""

    def __init__(self, args: Any, config: Any, *given: Any, **more: Any) -> None:
        super().__init__(args, config, *given, **more)
        self.mixing = torch.nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def hf_forward(self, hidden_states: Any, packed_seq_params: Any) -> Any:
        """Return what has the shape of the states [1, tokens, hidden]."""
        lengths = packed_seq_params.cu_seqlens_q.diff().tolist()
        mixed = self.mixing(hidden_states) / hidden_states.shape[-1]
        return torch.cat([torch.tanh(part.cumsum(dim=1)) for part in mixed.split(lengths, dim=1)], dim=1)


def layer_spec(args: Any, config: Any, vp_stage: int | None) -> TransformerBlockSubmodules:
    """Return the parts of the decoder, of which the first layer mixes and the others attend."""
    decoder = layers.layer_spec(args, config, vp_stage)
    first = copy.deepcopy(decoder.layer_specs[0])
    first.submodules.self_attention = ModuleSpec(module=Mixing, params={"args": args})
    decoder.layer_specs = [first, *decoder.layer_specs[1:]]
    return decoder
