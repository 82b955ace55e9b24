"""The Gated DeltaNet layers of Qwen3-Next and Qwen3.5 as slime has them, with their kernels in plain PyTorch.

`build()` returns the layer. The kernels of `fla` are stood in for by what Hugging Face's model does without
them, sequence by sequence.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Of a model with two layers, of which this is the first.
SIZES: dict[str, Any] = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 4,
    "linear_conv_kernel_dim": 4,
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "vocab_size": 16,
    "dtype": "float32",
}
#: What Hugging Face calls the models, by slime's modules for them. The second came with slime 0.2.3.
MODEL_TYPES = {"qwen3_next": "qwen3_next", "qwen3_5": "qwen3_5_text"}


class _Convolution(torch.nn.Module):
    """A causal convolution of each channel for itself, within each sequence, and SiLU."""

    def __init__(self, hidden_size: int, kernel_size: int, **_options: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(hidden_size, 1, kernel_size))

    def forward(self, x: Any, cu_seqlens: Any) -> Any:
        found = []
        for part in x.split(cu_seqlens.diff().tolist(), dim=1):
            padded = torch.nn.functional.pad(part.transpose(1, 2), (self.weight.shape[-1] - 1, 0))
            mixed = torch.nn.functional.conv1d(padded, self.weight, groups=self.weight.shape[0])
            found.append(torch.nn.functional.silu(mixed).transpose(1, 2))
        return torch.cat(found, dim=1), None


def _stand_in() -> Any:
    """Put the stand-ins for `fla` in place, and return Hugging Face's module of the model."""
    model = importlib.import_module("transformers.models.qwen3_next.modeling_qwen3_next")
    rule = model.torch_recurrent_gated_delta_rule

    def chunk_gated_delta_rule(*inputs: Any, cu_seqlens: Any = None, **options: Any) -> Any:
        names = ("g", "beta")
        # Up to 0.2.2 slime does not say where sequences begin: they are one.
        lengths = inputs[0].shape[1] if cu_seqlens is None else cu_seqlens.diff().tolist()
        parts = zip(*(one.split(lengths, 1) for one in (*inputs, *map(options.pop, names))), strict=True)
        found = [rule(*part[:3], **dict(zip(names, part[3:], strict=True)), **options)[0] for part in parts]
        return torch.cat(found, dim=1), None

    for name, contents in {
        "fla": {},
        "fla.ops": {},
        "fla.modules": {"ShortConvolution": _Convolution, "FusedRMSNormGated": model.Qwen3NextRMSNormGated},
        "fla.ops.gated_delta_rule": {"chunk_gated_delta_rule": chunk_gated_delta_rule},
    }.items():
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(contents)
    return model


def models() -> list[str]:
    """Return the models whose layer this slime has, by the names of its modules."""
    package = importlib.import_module("slime_plugins.models").__path__
    return [name for name in MODEL_TYPES if any(Path(folder, f"{name}.py").exists() for folder in package)]


def build(seed: int, model: str = "qwen3_next") -> Callable[[Any, Sequence[int]], Any]:
    """Return what runs slime's layer of a model on [1, tokens, size] and lengths, with drawn weights.

    Under `cuda_on_cpu`.
    """
    _stand_in()
    module: Any = importlib.import_module(f"slime_plugins.models.{model}")
    if hasattr(module, "accelerator"):
        # On slime's main branch, whose accelerators do not include a CPU.
        module.accelerator.current_device = torch.cuda.current_device
    attention = module.Attention
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        settings = {"model_type": MODEL_TYPES[model], **SIZES}
        Path(folder, "config.json").write_text(json.dumps(settings), encoding="utf-8")
        layer = attention(Namespace(hf_checkpoint=folder, sequence_parallel=False), None, 1).double()

    def run(states: Any, lengths: Sequence[int]) -> Any:
        bounds = torch.tensor([0, *lengths]).cumsum(0)
        return layer.hf_forward(states, Namespace(cu_seqlens_q=bounds))

    return run
