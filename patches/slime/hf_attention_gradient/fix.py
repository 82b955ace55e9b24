"""The backward of a gather over context parallel ranks, and of one over tensor parallel ranks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

#: In how many parts the gradient of all tokens is sent: one of them is held besides it.
_PARTS = 8


def make_backward(_original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build the backward of the gather over context parallel ranks: the sum of what all ranks give back.

    Each of them ran the layer on all tokens, and returned the output at its own: its gradient is that of its
    own tokens' loss. Those of a causal layer reach back to tokens of every other rank.
    """
    import torch
    import torch.distributed as dist

    from overlay.patches.slime.hf_attention_gradient.effect import EFFECT

    def backward(ctx: Any, *grads: Any) -> Any:
        """Return the gradient of this rank's tokens. Each of `grads`: of a rank's tokens, of one shape."""
        EFFECT.changed += 1
        own = torch.empty_like(grads[ctx.rank], memory_format=torch.contiguous_format)
        rows = -(-len(own) // _PARTS)
        for parts in zip(own.split(rows), *(grad.split(rows) for grad in grads), strict=True):
            dist.reduce_scatter_tensor(parts[0], torch.cat(parts[1:]), group=ctx.group)
        return own, None

    return backward


def make_forward(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build the `forward` of the layer of slime 0.2.0 to 0.2.3, with the gradient of its input divided.

    Under sequence parallelism it gathers its input in a way whose backward adds up the gradients of all
    tensor parallel ranks. They are copies, as every rank runs the whole layer.
    """
    import torch

    from overlay.patches.slime.hf_attention_gradient.effect import EFFECT

    class Divided(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, states: Any, ranks: int) -> Any:
            ctx.ranks = ranks
            return states.view_as(states)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            EFFECT.changed += 1
            EFFECT.times = max(EFFECT.times, ctx.ranks)
            return grads[0] / ctx.ranks, None

    def forward(self: Any, hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        ranks = module.mpu.get_tensor_model_parallel_world_size() if self.args.sequence_parallel else 1
        states = Divided.apply(hidden_states, ranks) if ranks > 1 else hidden_states
        return original(self, states, *args, **kwargs)

    # The releases differ in names that go through as they are.
    vars(forward)["__signature__"] = inspect.signature(original)
    return forward
