"""Sums the gradient of the rotary key, which all heads share, over the ranks that have the heads."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any


def make_tensors(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap the method that returns queries, keys and values, and in later releases more."""
    whole = _make_whole()

    @functools.wraps(original)
    def get_query_key_value_tensors(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(self, *args, **kwargs)
        key, config = made[1], self.config
        # Of a cache for generation the keys have no heads, and no gradient.
        if not key.requires_grad or key.size(-1) != config.qk_head_dim + config.qk_pos_emb_head_dim:
            return made
        group = _group(self)
        if group.size() == 1 or _is_summed(self):
            return made
        return type(made)((made[0], whole(key, config.qk_pos_emb_head_dim, group), *made[2:]))

    return get_query_key_value_tensors


def _group(layer: Any) -> Any:
    """Return the layer's tensor parallel group, or Megatron's where it has none of its own."""
    group = getattr(getattr(layer, "pg_collection", None), "tp", None)
    if group is not None:
        return group
    from megatron.core import parallel_state

    return parallel_state.get_tensor_model_parallel_group()


def _is_summed(layer: Any) -> bool:
    """Return whether Megatron sums it: as it gathers the sequence, from a projection that is whole here."""
    config = layer.config
    rows = config.kv_lora_rank + config.qk_pos_emb_head_dim
    down = getattr(layer, "linear_kv_down_proj", None)
    if down is None:  # one projection for queries too
        down, rows = layer.linear_qkv_down_proj, rows + config.q_lora_rank
    # The first matrix is the projection's own, whatever norm or adapter is about it.
    matrix = next(one for one in down.parameters() if one.ndim > 1)
    return bool(config.sequence_parallel) and len(matrix) == rows


def _make_whole() -> Callable[..., Any]:
    import torch

    from overlay.patches.megatron.mla_rotary_key_over_tp.effect import EFFECT

    class Whole(torch.autograd.Function):
        """Keys [tokens, (sequences,) heads, size] as they are, of which the last `width` are shared."""

        @staticmethod
        def forward(ctx: Any, key: Any, width: int, group: Any) -> Any:
            ctx.width, ctx.group = width, group
            return key.view_as(key)  # the same memory: Megatron may free it and compute it anew

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            grad = grads[0].clone()
            shared = grad[..., -ctx.width :]
            total = shared.sum(-2)
            torch.distributed.all_reduce(total, group=ctx.group)
            # What follows adds the heads up: one of them has it all.
            shared.zero_()
            shared[..., 0, :] = total
            return grad, None, None

    def whole(key: Any, width: int, group: Any) -> Any:
        EFFECT.changed += 1
        return Whole.apply(key, width, group)

    return whole
