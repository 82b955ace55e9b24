"""Attention over packed sequences with context parallelism, in plain torch, for tests and demos on a CPU.

Megatron's own attention without Transformer Engine refuses packed sequences and context parallelism. This
module stands in for that one layer and keeps its true communication: keys and values are gathered over the
micro-batch's own context parallel group, and their gradients are summed back onto the ranks that own them.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu

if TYPE_CHECKING:
    from megatron.core.packed_seq_params import PackedSeqParams


class PackedAttention(torch.nn.Module):
    """Causal attention inside each packed sequence, for the rows that this context parallel rank holds.

    It takes the place of `core_attention` in Megatron's layer specification and is built with the same
    keywords. Rows follow the layout of verl's `preprocess_thd_engine`: rank r of C holds, of each padded
    sequence cut into 2C chunks, the chunks r and 2C - 1 - r.
    """

    def __init__(self, *, config: Any, softmax_scale: float | None = None, **_unused: Any) -> None:
        super().__init__()
        head_size: int = config.kv_channels
        self.scale = softmax_scale if softmax_scale is not None else 1.0 / math.sqrt(head_size)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        packed_seq_params: PackedSeqParams,
        **_unused: Any,
    ) -> torch.Tensor:
        """Attend.

        Args:
            query: [own rows, heads, head size].
            key: [own rows, groups, head size]; heads must be a multiple of groups.
            value: as `key`.
            attention_mask: Not used; causality and the sequences' bounds are in `packed_seq_params`.
            packed_seq_params: Holds the padded bounds of the sequences and, under dynamic context
                parallelism, the group that shares this micro-batch.

        Returns:
            [own rows, heads * head size].

        """
        del attention_mask
        group = getattr(packed_seq_params, "cp_group", None) or mpu.get_context_parallel_group()
        ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        rows = rows_by_rank(packed_seq_params.cu_seqlens_q_padded.tolist(), ranks)
        everyone = torch.tensor([row for own in rows for row in own])
        own = torch.tensor(rows[rank])
        bounds = packed_seq_params.cu_seqlens_q_padded[1:].long()

        key, value = _Gather.apply(key, group), _Gather.apply(value, group)
        repeat = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(repeat, dim=1), value.repeat_interleave(repeat, dim=1)
        scores = torch.einsum("qhd,khd->hqk", query, key) * self.scale
        same = torch.searchsorted(bounds, own, right=True)[:, None] == torch.searchsorted(
            bounds, everyone, right=True
        )
        scores = scores.masked_fill(~(same & (everyone <= own[:, None])), -math.inf)
        mixed = torch.einsum("hqk,khd->qhd", scores.softmax(dim=-1), value)
        return mixed.reshape(query.shape[0], -1)


def rows_by_rank(bounds: list[int], ranks: int) -> list[list[int]]:
    """Return, for each context parallel rank, the rows of the whole pack that it holds, in its order.

    `bounds`: start of each padded sequence in the pack, and the end of the last one. `ranks`: size of the
    context parallel group. Each padded length is a multiple of twice this, or `ranks` is 1.
    """
    if ranks == 1:
        return [list(range(bounds[-1]))]
    rows: list[list[int]] = [[] for _ in range(ranks)]
    for start, end in itertools.pairwise(bounds):
        chunk = (end - start) // (2 * ranks)
        for rank, own in enumerate(rows):
            for index in (rank, 2 * ranks - 1 - rank):
                own.extend(range(start + index * chunk, start + (index + 1) * chunk))
    return rows


class _Gather(torch.autograd.Function):
    """Concatenate the ranks' rows; backward, hand each rank the sum of all ranks' gradients of its rows."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, rows.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        # An all-reduce and a slice is a reduce-scatter that every backend has.
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total, group=ctx.group)
        return total.chunk(dist.get_world_size(ctx.group))[dist.get_rank(ctx.group)], None
