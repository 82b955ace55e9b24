"""Norms for Megatron's sequence parallelism, in plain torch, for tests on a CPU.

Megatron's own norm without Transformer Engine and Apex refuses sequence parallelism, and only because it does
not mark its parameters. Under sequence parallelism each tensor parallel rank norms its own tokens, so the
gradients of a norm are partial, and Megatron adds up those of the parameters that are marked.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build


class SequenceParallelNorm(torch.nn.LayerNorm):
    """Layer norm with marked parameters, built with the keywords of Megatron's norms."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_unused: Any) -> None:
        if config.normalization != "LayerNorm" or config.layernorm_zero_centered_gamma:
            raise NotImplementedError("only a plain LayerNorm is stood in for")
        super().__init__(hidden_size, eps=eps)
        for parameter in self.parameters():
            vars(parameter)["sequence_parallel"] = True


def with_sequence_parallel_norms(layer: Any, config: Any) -> TransformerBlockSubmodules:
    """Return the parts of a decoder of this stage that is made of `layer`, with these norms throughout."""
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = SequenceParallelNorm
    layers = [layer] * get_num_layers_to_build(config)
    return TransformerBlockSubmodules(layer_specs=layers, layer_norm=SequenceParallelNorm)
