"""`megatron.label-smoothing-over-tp`: labels are smoothed over the vocabulary of all ranks.

The function that computes the loss is wrapped. With smoothing and more than one rank it gives way to a
function of its own; without, it is as it was.
"""

from __future__ import annotations

from overlay.compat.projects import MEGATRON
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches.megatron.label_smoothing_over_tp.fix import make_grouped_loss, make_loss

_MODULE = "megatron.core.tensor_parallel.cross_entropy"
_LOSS = f"{_MODULE}:vocab_parallel_cross_entropy"
#: Its digest says that the vocabulary is a rank's own: what is mended.
_FORWARD = f"{_MODULE}:_VocabParallelCrossEntropy.forward"

PATCH = Patch(
    id="megatron.label-smoothing-over-tp",
    revision=2,
    summary="Labels are smoothed over the whole vocabulary, not over a rank's part of it",
    why=(
        "With tensor parallelism each rank has a part of the vocabulary, and Megatron's cross entropy with "
        "label smoothing takes the mean of the log-probabilities over that part, as if it were all: every "
        "rank has another loss, and a gradient that is not that of the loss of any. With the patch the sum "
        "of the logits is taken over all ranks, and loss and gradient are those of one process."
    ),
    changes=("numbers",),
    met="label_smoothing above 0 in vocab_parallel_cross_entropy, with a tensor parallel size above 1.",
    evidence=(
        "Loss and gradient are those of torch's cross entropy over the whole vocabulary, in float64 on "
        "one process."
    ),
    upstream=("NVIDIA/Megatron-LM#7452",),
    targets=one_target(
        MEGATRON,
        variant(
            "0.12",
            replaced(_LOSS, make_loss),
            _FORWARD,
        ),
        variant(
            "0.19",
            replaced(_LOSS, make_grouped_loss),
            _FORWARD,
        ),
    ),
)
