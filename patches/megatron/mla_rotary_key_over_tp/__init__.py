"""`megatron.mla-rotary-key-over-tp`: the rotary key that all heads share has the gradient of all ranks."""

import functools
from typing import Any

from overlay.compat.projects import MEGATRON
from overlay.effect import effect
from overlay.patch import Patch, around, one_target, replaced, variant

# They say that the last part of each head's key is the rotary one, and that nothing sums its gradient.
_TENSORS = "megatron.core.transformer.multi_latent_attention:MLASelfAttention.get_query_key_value_tensors"
EFFECT = effect(__name__, "layer's rotary key", did="given the gradient of all ranks", always=True)


@around
def tensors(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Return queries, keys and values, and in later releases more, with keys whose gradient is summed."""
    made = original(self, *args, **kwargs)
    key, width = made[1], self.config.qk_pos_emb_head_dim
    # Of a cache for generation the keys have no heads, and no gradient.
    if not key.requires_grad or key.size(-1) != self.config.qk_head_dim + width:
        return made
    group = getattr(getattr(self, "pg_collection", None), "tp", None)
    if group is None:
        from megatron.core import parallel_state

        group = parallel_state.get_tensor_model_parallel_group()
    if group.size() == 1 or _is_summed(self):
        return made
    EFFECT.changed += 1
    return type(made)((made[0], _whole().apply(key, width, group), *made[2:]))


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


@functools.cache
def _whole() -> Any:
    """Return what sums the gradient of the rotary part of keys."""
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

    return Whole


PATCH = Patch(
    id="megatron.mla-rotary-key-over-tp",
    summary="The rotary key of multi-latent attention gets all heads' gradient, not one rank's",
    why="All heads of multi-latent attention share one rotary key, and each tensor parallel rank hands back "
    "its gradient from its own heads alone. That is right only with sequence parallelism and a down "
    "projection that every rank has whole. Elsewhere the gradient of that projection's last rows and of all "
    "earlier layers is too small, and without sequence parallelism the ranks' copies drift apart. With the "
    "patch the parts are summed: one all-reduce of that key for each layer in the backward pass.",
    changes=("numbers",),
    met="multi_latent_attention with tensor parallelism: before 0.14, without sequence_parallel, without "
    "Transformer Engine, or with mla_down_proj_fusion.",
    evidence="One process of Megatron's own layer has the same gradients, and so does Megatron where that is "
    "right.",
    upstream=("NVIDIA/Megatron-LM#6839",),
    targets=one_target(MEGATRON, variant("0.12", replaced(_TENSORS, tensors))),
)
