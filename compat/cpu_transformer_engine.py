"""A stand-in for Transformer Engine, on which Megatron's own `TEDotProductAttention` is defined and runs.

Its `DotProductAttention` has the attributes and the setter of a context parallel group that the real one has,
and attends as `PackedAttention` does, over the group that was set. The norms are torch's, and everything else
of the package is a name.
Nothing here says what the kernels of Transformer Engine do.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from types import SimpleNamespace
from typing import Any, cast

import torch

from overlay.compat.names import Finder, Names

#: New enough for packed sequences with padding, and older than whatever takes more than names.
VERSION = "1.12.0"


def version() -> str:
    """Return the version that this stands for: what `TE_STAND_IN` says, if it is one."""
    asked = os.environ.get("TE_STAND_IN", "")
    return asked if "." in asked else VERSION


class DotProductAttention(torch.nn.Module):
    """Attention in the context parallel group that was set last, `None` for this rank alone."""

    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: int,
        *,
        cp_group: Any = None,
        cp_global_ranks: Any = None,
        cp_stream: Any = None,
        cp_comm_type: str = "p2p",
        softmax_scale: float | None = None,
        **_unused: Any,
    ) -> None:
        super().__init__()
        from overlay.compat.cpu_attention import PackedAttention

        config = SimpleNamespace(kv_channels=kv_channels)
        self.attention = PackedAttention(config=config, softmax_scale=softmax_scale)
        #: The size of each group that was set, 0 for none, in order.
        self.log: list[int] = []
        self.set_context_parallel_group(cp_group, cp_global_ranks, cp_stream, cp_comm_type)
        self.log.clear()

    def set_context_parallel_group(
        self, cp_group: Any, cp_global_ranks: Any, cp_stream: Any, cp_comm_type: str = "p2p"
    ) -> None:
        """Attend in this group from now on, and log its size, 0 for none."""
        self.cp_group, self.cp_global_ranks = cp_group, cp_global_ranks
        self.cp_stream, self.cp_comm_type = cp_stream, cp_comm_type
        self.log.append(0 if cp_group is None else cp_group.size())

    def forward(
        self, query: Any, key: Any, value: Any, _mask: Any, *, cu_seqlens_q_padded: Any, **_unused: Any
    ) -> Any:
        """Attend within each packed sequence."""
        if self.cp_group is not None and self.cp_group.size() > 1 and self.cp_stream is None:
            raise ValueError("the exchange of keys and values needs a stream")
        packed: Any = SimpleNamespace(cp_group=self.cp_group, cu_seqlens_q_padded=cu_seqlens_q_padded)
        return self.attention(query, key, value, packed_seq_params=packed)


def _mark(parameter: Any, dim: int) -> None:
    """Set what Transformer Engine's `set_tensor_model_parallel_attributes` sets."""
    parameter.tensor_model_parallel, parameter.partition_dim, parameter.partition_stride = True, dim, 1


class Linear(torch.nn.Module):
    """Parameters of a linear layer, marked as `reset_parameters` of linear.py marks them, 1.13 to 2.16.1."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        parallel_mode: str | None = None,
        sequence_parallel: bool = False,
        bias: bool = True,
        tp_size: int = 1,
        **_unused: Any,
    ) -> None:
        super().__init__()
        self.parallel_mode, self.use_bias = parallel_mode, bias
        out_features //= tp_size if parallel_mode == "column" else 1
        in_features //= tp_size if parallel_mode == "row" else 1
        self.weight = torch.nn.Parameter(torch.empty(out_features, in_features))
        _mark(self.weight, 1 if parallel_mode == "row" else 0)
        if bias:
            self.bias = torch.nn.Parameter(torch.empty(out_features))
            if parallel_mode == "row":
                cast("Any", self.bias).sequence_parallel = sequence_parallel
            elif parallel_mode == "column":
                _mark(self.bias, 0)


class GroupedLinear(torch.nn.Module):
    """Parameters of several linear layers, with marks or without.

    With: `reset_parameters` of grouped_linear.py, 1.13 (line 657) to 2.12 (727). Since 2.13 (795) that calls
    what marks only where the weights are one tensor, which is an option.
    """

    def __init__(
        self,
        num_gemms: int,
        in_features: int,
        out_features: int,
        *,
        parallel_mode: str | None = None,
        bias: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.num_gemms, self.parallel_mode, self.use_bias = num_gemms, parallel_mode, bias
        marked = tuple(map(int, version().split(".")[:2])) < (2, 13)
        for index in range(num_gemms):
            one = Linear(in_features, out_features, parallel_mode=parallel_mode, bias=bias, **settings)
            for name, parameter in one.named_parameters():
                if not marked:
                    vars(parameter).clear()
                self.register_parameter(f"{name}{index}", parameter)


class _Keywords:
    """Makes a norm of torch's by Transformer Engine's keywords."""

    def __init__(
        self, normalized_shape: int = 0, eps: float = 1e-5, *, hidden_size: int = 0, **_unused: Any
    ) -> None:
        super().__init__(hidden_size or normalized_shape, eps=eps)  # type: ignore[call-arg]


class LayerNorm(_Keywords, torch.nn.LayerNorm):
    """A layer norm."""


class RMSNorm(_Keywords, torch.nn.RMSNorm):
    """An RMS norm."""


class SplitAlongDim:
    """Splits a tensor."""

    @staticmethod
    def apply(rows: torch.Tensor, dim: int, sizes: list[int]) -> tuple[torch.Tensor, ...]:
        """Cut a tensor along one dimension into parts of these sizes."""
        return torch.split(rows, sizes, dim)


#: What is called while a model is built or run, wherever it is imported from.
_ANYWHERE: dict[str, Any] = {
    "SplitAlongDim": SplitAlongDim,
    "_SplitAlongDim": SplitAlongDim,
    "get_cpu_offload_context": lambda *_settings: (contextlib.nullcontext(), None),
}


class _Engine(Names):
    """A module of the package: modules by small names, classes by others."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        vars(self)["__version__"] = version()
        if name == "transformer_engine.pytorch":
            vars(self).update(DotProductAttention=DotProductAttention, LayerNorm=LayerNorm, RMSNorm=RMSNorm)
            vars(self).update(Linear=Linear, GroupedLinear=GroupedLinear)

    def made(self, name: str) -> Any:
        if name in _ANYWHERE:
            return _ANYWHERE[name]
        if name[0].islower():
            return importlib.import_module(f"{self.__name__}.{name}")
        made = type(name, (torch.nn.Module,), {})
        setattr(self, name, made)
        return made


def install() -> None:
    """Let the package be imported from now on. For processes of their own: it stays."""
    sys.meta_path.insert(0, Finder("transformer_engine", kind=_Engine))
