"""`megatron.mla-rotary-key-over-tp`: the key that all heads of multi-latent attention share has its gradient.

The method that makes queries, keys and values is wrapped. Its keys are handed on as they are; on the way back
the gradient of their rotary part, which a rank has of its own heads only, is summed over the ranks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from overlay.compat.projects import MEGATRON
from overlay.effect import effect
from overlay.patch import Patch, one_target, replaced, variant

# Its digests say that the last part of each head's key is the rotary one, and that nothing sums its gradient.
_TENSORS = "megatron.core.transformer.multi_latent_attention:MLASelfAttention.get_query_key_value_tensors"
EFFECT = effect(__name__, "layer's rotary key", did="given the gradient of all ranks", always=True)


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


PATCH = Patch(
    id="megatron.mla-rotary-key-over-tp",
    summary="The rotary key of multi-latent attention has the gradient of all heads, not of one rank's",
    why=(
        "All heads of multi-latent attention share one rotary key, and each tensor parallel rank has its own "
        "heads. Megatron hands back the gradient of that key from a rank's heads alone, but for one case: "
        "sequence parallelism with a down projection that every rank has whole, as Transformer Engine's "
        "layers have it from 0.14 on. In all others the gradient of that projection's last rows, of the "
        "input and so of every layer before is too small, and without sequence parallelism differs between "
        "ranks, whose copies drift apart. With the patch the parts are summed: one all-reduce of that key "
        "for each layer in the backward pass."
    ),
    changes=("numbers",),
    met=(
        "multi_latent_attention with tensor parallelism: before 0.14, without sequence_parallel, without "
        "Transformer Engine, or with mla_down_proj_fusion."
    ),
    evidence=(
        "One process of Megatron's own layer has the same gradients, and so does Megatron where a whole "
        "down projection meets sequence parallelism."
    ),
    upstream=("NVIDIA/Megatron-LM#6839",),
    targets=one_target(
        MEGATRON,
        variant(
            "0.12",
            replaced(_TENSORS, make_tensors),
        ),
    ),
)
