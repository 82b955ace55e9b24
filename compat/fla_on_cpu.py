"""The gated delta rule in plain torch, under the names that models import from `fla`, which needs Triton.

It is the recurrence as the paper has it (arXiv:2412.06464), token by token. As in `fla`, sequences that are
packed in one row are told apart by `cu_seqlens`, and by nothing else.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from types import ModuleType
from typing import Any

import torch
from torch.nn import functional


def stand_in() -> None:
    """Put the names in place of a package that is not installed, for as long as the process lasts.

    Those that are `None` here are only imported: Megatron, told to be deterministic, has kernels of its own.
    """
    names: dict[str, dict[str, Any]] = {
        "fla": {},
        "fla.modules": {"FusedRMSNormGated": GatedNorm, "ShortConvolution": ShortConvolution},
        "fla.modules.convolution": {"causal_conv1d": None},
        "fla.modules.l2norm": {"l2norm": l2norm},
        "fla.ops": {},
        "fla.ops.cp": {"build_cp_context": None},
        "fla.ops.gated_delta_rule": {"chunk_gated_delta_rule": gated_delta_rule},
    }
    for name, held in names.items():
        made = sys.modules[name] = ModuleType(name)
        vars(made).update(held)


def _each(length: int, bounds: Any) -> list[slice]:
    """Return where the sequences of a row lie: one of all of it, unless there are bounds."""
    ends = [0, length] if bounds is None else [int(bound) for bound in bounds]
    return [slice(*pair) for pair in pairwise(ends)]


def l2norm(x: Any) -> Any:
    """Return what has the length 1 over the last dimension."""
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


def gated_delta_rule(
    q: Any, k: Any, v: Any, g: Any, beta: Any, cu_seqlens: Any = None, **options: Any
) -> Any:
    """Return [1, tokens, heads, size of a value], and no state.

    Args:
        q: Queries, [1, tokens, heads, size of a key].
        k: Keys, alike.
        v: Values, [1, tokens, heads, size of a value].
        g: Logarithms of the decay, [1, tokens, heads].
        beta: How much of a value is written, alike.
        cu_seqlens: Where each of the packed sequences begins, and the last one ends.
        options: Those of `fla`: of a state there is none, before nor after.

    """
    if options.pop("use_qk_l2norm_in_kernel", False):
        q, k = l2norm(q), l2norm(k)
    q = q * q.shape[-1] ** -0.5
    rows = []
    for part in _each(q.shape[1], cu_seqlens):
        state = q.new_zeros(q.shape[2], q.shape[3], v.shape[3])
        for token in range(part.start, part.stop):
            state = state * g[0, token].exp()[:, None, None]
            written = beta[0, token][:, None] * (v[0, token] - torch.einsum("hk,hkv->hv", k[0, token], state))
            state = state + torch.einsum("hk,hv->hkv", k[0, token], written)
            rows.append(torch.einsum("hk,hkv->hv", q[0, token], state))
    return torch.stack(rows)[None], None


class ShortConvolution(torch.nn.Module):
    """A causal convolution of each channel over some tokens, and SiLU."""

    def __init__(self, hidden_size: int, kernel_size: int, bias: bool = False, **_options: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(hidden_size, 1, kernel_size) / kernel_size**0.5)
        if bias:
            raise NotImplementedError("with a bias")

    def forward(self, x: Any, cu_seqlens: Any = None, **_options: Any) -> Any:
        """Return [1, tokens, channels], and no cache."""
        channels, _, kernel = self.weight.shape
        parts = [functional.pad(x[:, part].mT, (kernel - 1, 0)) for part in _each(x.shape[1], cu_seqlens)]
        made = [functional.conv1d(part, self.weight, groups=channels) for part in parts]
        return functional.silu(torch.cat(made, dim=-1).mT), None


class GatedNorm(torch.nn.Module):
    """An RMS norm, times SiLU of a gate."""

    def __init__(self, hidden_size: int, eps: float = 1e-5, **_options: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(hidden_size))
        self.eps = eps

    def forward(self, x: Any, g: Any) -> Any:
        """Return what has the shape of both."""
        return functional.rms_norm(x, x.shape[-1:], self.weight, self.eps) * functional.silu(g)
