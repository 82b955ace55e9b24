"""`slime.hf-attention-gradient`: a layer that every rank runs on all tokens gets the gradient of all tokens.

The ranks gather the tokens, and each keeps its own of the output. Under context parallelism the gradient that
a rank returns to another's tokens is a part of theirs, under tensor parallelism a copy: the backward of the
gather must sum in the one and not in the other. Before 0.2.4 slime summed in both, then in neither.
"""

from functools import wraps
from typing import Any

from overlay.compat.projects import SLIME
from overlay.effect import effect
from overlay.patch import Patch, one_target, replaced, variant

_LAYER = "slime_plugins.models.hf_attention"
_GATHER = f"{_LAYER}:_AllGatherForDuplicatedComputation"
EFFECT = effect(__name__, "backward pass", did="corrected", always=True)
#: In how many parts the gradient of all tokens is sent: one of them is held besides it.
_PARTS = 8


def make_backward(_original: Any, _module: Any) -> Any:
    """Build the backward of the gather over context parallel ranks: the sum of what all ranks return."""
    import torch
    import torch.distributed as dist

    def backward(ctx: Any, *grads: Any) -> Any:
        """Return the gradient of this rank's tokens. Each of `grads`: of a rank's tokens, of one shape."""
        EFFECT.changed += 1
        own = torch.empty_like(grads[ctx.rank], memory_format=torch.contiguous_format)
        rows = -(-len(own) // _PARTS)
        for parts in zip(own.split(rows), *(grad.split(rows) for grad in grads), strict=True):
            dist.reduce_scatter_tensor(parts[0], torch.cat(parts[1:]), group=ctx.group)
        return own, None

    return backward


def make_forward(original: Any, module: Any) -> Any:
    """Wrap the `forward` of the layer of slime 0.2.0 to 0.2.3: the gradient of its input is divided.

    Under sequence parallelism its gather adds up those of all tensor parallel ranks, which are copies.
    """
    import torch

    class Divided(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, states: Any, ranks: int) -> Any:
            ctx.ranks = ranks
            return states.view_as(states)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            EFFECT.changed += 1
            return grads[0] / ctx.ranks, None

    def forward(self: Any, hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        ranks = module.mpu.get_tensor_model_parallel_world_size() if self.args.sequence_parallel else 1
        states = Divided.apply(hidden_states, ranks) if ranks > 1 else hidden_states
        return original(self, states, *args, **kwargs)

    return wraps(original)(forward)


PATCH = Patch(
    id="slime.hf-attention-gradient",
    summary="The gradient below Gated DeltaNet layers is that of one process, under CP and under TP",
    why="slime runs each Gated DeltaNet layer (Qwen3-Next, Qwen3.5) whole on every rank. Since 0.2.4 the "
    "backward drops the gradient that a rank returns to the tokens of other context parallel ranks: all "
    "below such a layer silently trains on a wrong gradient. From 0.2.0 to 0.2.3 each such layer multiplies "
    "it by the tensor parallel size under sequence parallelism. With the patch it is one process's.",
    changes=("numbers",),
    met="Qwen3-Next or Qwen3.5 with slime's own layer: from 0.2.4 on a context parallel size above 1, before "
    "it tensor parallelism with --sequence-parallel.",
    upstream=("THUDM/slime#1748",),
    evidence="The gradient is that of one process in float64 with the same layer on all tokens.",
    targets=one_target(
        SLIME,
        variant("0.2", replaced(f"{_LAYER}:HuggingfaceAttention.forward", make_forward)),
        variant("0.2.4", replaced(f"{_GATHER}.backward", make_backward), f"{_GATHER}.forward"),
        tells=(_LAYER,),
    ),
)
