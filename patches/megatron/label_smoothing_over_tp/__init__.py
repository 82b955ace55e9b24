"""`megatron.label-smoothing-over-tp`: labels are smoothed over the vocabulary of all ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from overlay.compat.projects import MEGATRON
from overlay.effect import effect
from overlay.patch import Patch, one_target, replaced, variant

_MODULE = "megatron.core.tensor_parallel.cross_entropy"
_LOSS = f"{_MODULE}:vocab_parallel_cross_entropy"
#: Takes the vocabulary of a rank for all of it: what is mended.
_FORWARD = f"{_MODULE}:_VocabParallelCrossEntropy.forward"
EFFECT = effect(__name__, "micro-batch", did="smoothed the labels of", always=True)


def make_loss(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build the loss, which is upstream's without smoothing, and on one rank. 0.19 may be given the group."""
    smoothed = _make_smoothed()

    @functools.wraps(original)
    def vocab_parallel_cross_entropy(
        vocab_parallel_logits: Any, target: Any, label_smoothing: float = 0.0, tp_group: Any = None
    ) -> Any:
        group = module.get_tensor_model_parallel_group() if tp_group is None else tp_group
        if label_smoothing > 0 and group.size() > 1:
            return smoothed(vocab_parallel_logits, target, label_smoothing, group)
        return original(
            vocab_parallel_logits, target, label_smoothing, *(() if tp_group is None else (tp_group,))
        )

    return vocab_parallel_cross_entropy


def _make_smoothed() -> Callable[..., Any]:
    """Build the loss of logits [..., vocabulary / ranks] and targets [...]: float32, of their shape.

    The share `smoothing` goes to all tokens but the target in equal parts, as upstream has it.
    """
    import torch
    from torch.distributed import ReduceOp, all_reduce

    class Smoothed(torch.autograd.Function):
        """Cross entropy against smoothed labels."""

        @staticmethod
        def forward(ctx: Any, logits: Any, target: Any, smoothing: float, group: Any) -> Any:
            own = logits.size(-1)
            whole = own * group.size()
            # The target keeps what is left of an equal part for every token of the vocabulary.
            spread = smoothing * whole / (whole - 1)
            values = logits.float()
            highest = values.max(-1).values
            all_reduce(highest, op=ReduceOp.MAX, group=group)
            values = values - highest.unsqueeze(-1)
            place = target - own * group.rank()
            elsewhere = (place < 0) | (place >= own)
            place = place.masked_fill(elsewhere, 0).unsqueeze(-1)
            aimed = values.gather(-1, place).squeeze(-1).masked_fill(elsewhere, 0.0)
            logit_sum = values.sum(-1)
            powers = values.exp_()  # in place: it is large
            sums = torch.stack([powers.sum(-1), logit_sum, aimed])
            all_reduce(sums, group=group)
            total, logit_sum, aimed = sums.unbind()
            ctx.save_for_backward(powers.div_(total.unsqueeze(-1)), place, elsewhere)
            ctx.spread, ctx.whole = spread, whole
            return total.log() - (1 - spread) * aimed - spread / whole * logit_sum

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            softmax, place, elsewhere = ctx.saved_tensors
            by = softmax.sub_(ctx.spread / ctx.whole)  # in place, as upstream: a second backward raises
            kept = torch.full_like(by[..., :1], ctx.spread - 1).masked_fill(elsewhere.unsqueeze(-1), 0.0)
            by.scatter_add_(-1, place, kept)
            return by.mul_(grads[0].unsqueeze(-1)), None, None, None

    def smoothed(logits: Any, target: Any, smoothing: float, group: Any) -> Any:
        if not 0 < smoothing < 1:
            msg = f"label_smoothing is {smoothing}, and must be below 1"
            raise ValueError(msg)
        EFFECT.changed += 1
        return Smoothed.apply(logits, target, smoothing, group)

    return smoothed


PATCH = Patch(
    id="megatron.label-smoothing-over-tp",
    revision=2,
    summary="Labels are smoothed over the whole vocabulary, not over a rank's part of it",
    why=(
        "With tensor parallelism Megatron's cross entropy smooths labels over a rank's part of the "
        "vocabulary, as if it were all: every rank has another loss, and a gradient that is not that of any. "
        "With the patch loss and gradient are those of one process."
    ),
    changes=("numbers",),
    met="label_smoothing above 0 in vocab_parallel_cross_entropy, with a tensor parallel size above 1.",
    evidence="Loss and gradient are those of torch's cross entropy over the whole vocabulary, in float64.",
    upstream=("NVIDIA/Megatron-LM#7452",),
    targets=one_target(
        MEGATRON, *(variant(name, replaced(_LOSS, make_loss), _FORWARD) for name in ("0.12", "0.19"))
    ),
)
