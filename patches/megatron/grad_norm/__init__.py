"""`megatron.grad-norm`: each element of the model counts once in the norm of the gradient.

Megatron leaves out of the norm what another tensor parallel rank has too, and tells by a mark of Transformer
Engine's, which was dropped for grouped experts in 2.13, is set where a weight is not split, and is missing on
attention sinks. Every optimizer begins with one of two functions. There the modules of the model are known by
the names of their classes, and the marks are put right before optimizers copy them to their shards.
"""

from __future__ import annotations

from overlay.compat.projects import MEGATRON
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches.megatron.grad_norm.fix import make_marked

_GROUPS = "megatron.core.optimizer:_get_param_groups"
#: All optimizers but Muon begin with this one. It calls the other, which ms-swift replaces at times.
_BUFFERS = f"{_GROUPS}_and_buffers"

PATCH = Patch(
    id="megatron.grad-norm",
    revision=2,
    summary="Experts, undivided weights and attention sinks count once in the gradient norm",
    why=(
        "With tensor parallelism Megatron counts a parameter without a mark on the first tensor parallel "
        "rank only, and one with a mark on all. Transformer Engine 2.13 stopped marking grouped expert "
        "weights: of all experts (TP-1)/TP is missing from the norm, so that it is reported too small and "
        "clipped too weakly. Weights that are not split, as of the down projections of multi-latent "
        "attention, are marked and count TP times, up to Megatron 0.16. Learnable attention sinks have "
        "never been marked. With the patch the marks are right before an optimizer is built. The norm of a "
        "running job changes with them, and the size of an update that is clipped."
    ),
    changes=("numbers",),
    met=(
        "Tensor parallelism, with grouped experts on Transformer Engine 2.13 or later (Megatron before 0.19),"
        " multi-latent attention (Megatron before 0.17) or softmax_type=learnable (any)."
    ),
    evidence=(
        "megatron-core 0.19 marks experts so, and 0.17 leaves weights that are not split unmarked. For "
        "attention sinks too, norm and update are compared with the whole model's in float64."
    ),
    upstream=(
        "NVIDIA/Megatron-LM#5916",
        "NVIDIA/Megatron-LM#3213",
        "NVIDIA/Megatron-LM#7530",
        "NVIDIA/Megatron-LM#7452",
    ),
    targets=one_target(
        MEGATRON,
        variant(
            "0.12",
            replaced(_GROUPS, make_marked),
            replaced(_BUFFERS, make_marked),
        ),
    ),
)
