"""`megatron.label-smoothing-over-tp`: labels are smoothed over the vocabulary of all ranks."""

import functools
from typing import Any

from overlay.compat.projects import MEGATRON
from overlay.effect import effect
from overlay.patch import Patch, around, one_target, replaced, variant

_MODULE = "megatron.core.tensor_parallel.cross_entropy"
_LOSS = f"{_MODULE}:vocab_parallel_cross_entropy"
#: Takes the vocabulary of a rank for all of it: what is mended.
_FORWARD = f"{_MODULE}:_VocabParallelCrossEntropy.forward"
EFFECT = effect(__name__, "micro-batch", did="smoothed the labels of", always=True)


@around
def loss(
    original: Any,
    vocab_parallel_logits: Any,
    target: Any,
    label_smoothing: float = 0.0,
    tp_group: Any = None,
) -> Any:
    """Compute the loss, which is upstream's without smoothing, and on one rank. 0.19 may be given the group.

    Logits are [..., vocabulary / ranks], targets and loss [...]. The share that upstream takes for smoothing
    goes to all tokens alike, but for the target's. Then the loss is that without smoothing, and so much of
    how far the target's logit is above the mean of all.
    """
    from megatron.core import parallel_state

    group = parallel_state.get_tensor_model_parallel_group() if tp_group is None else tp_group
    given = () if tp_group is None else (tp_group,)
    if label_smoothing <= 0 or group.size() == 1:
        return original(vocab_parallel_logits, target, label_smoothing, *given)
    if label_smoothing >= 1:
        msg = f"label_smoothing is {label_smoothing}, and must be below 1"
        raise ValueError(msg)
    EFFECT.changed += 1
    whole = vocab_parallel_logits.size(-1) * group.size()
    logits, above = _above_mean().apply(vocab_parallel_logits, target, group)
    return original(logits, target, 0.0, *given) + label_smoothing * whole / (whole - 1) * above


@functools.cache
def _above_mean() -> Any:
    """Return what takes logits, and returns them in float32 with how far the target's is above the mean."""
    import torch
    from torch.distributed import all_reduce

    class AboveMean(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, logits: Any, target: Any, group: Any) -> Any:
            own, values = logits.size(-1), logits.float()
            ctx.whole = own * group.size()
            place = target - own * group.rank()
            elsewhere = (place < 0) | (place >= own)
            place = place.masked_fill(elsewhere, 0).unsqueeze(-1)
            aimed = values.gather(-1, place).squeeze(-1).masked_fill(elsewhere, 0.0)
            above = aimed - values.sum(-1) / ctx.whole
            all_reduce(above, group=group)
            ctx.save_for_backward(place, elsewhere)
            return values.detach(), above  # the same memory, which upstream writes to

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            place, elsewhere = ctx.saved_tensors
            # In place, as it is large: upstream's gradient, to which nothing else refers.
            grad, by = grads[0], grads[1].unsqueeze(-1)
            grad.sub_(by / ctx.whole).scatter_add_(-1, place, by.masked_fill(elsewhere.unsqueeze(-1), 0.0))
            return grad, None, None

    return AboveMean


PATCH = Patch(
    id="megatron.label-smoothing-over-tp",
    summary="Labels are smoothed over the whole vocabulary, not over a rank's part of it",
    why="With tensor parallelism Megatron's cross entropy smooths labels over a rank's part of the "
    "vocabulary, as if it were all: every rank has another loss, and a gradient that is not that of any.",
    changes=("numbers",),
    met="label_smoothing above 0 in vocab_parallel_cross_entropy, with a tensor parallel size above 1.",
    evidence="Loss and gradient are those of torch's cross entropy over the whole vocabulary, in float64, "
    "with the smoothing that Megatron has on one rank.",
    upstream=("NVIDIA/Megatron-LM#7452",),
    targets=one_target(
        MEGATRON, *(variant(name, replaced(_LOSS, loss), _FORWARD) for name in ("0.12", "0.19"))
    ),
)
