"""`megatron.grad-norm`: each element of the model counts once in the norm of the gradient.

Megatron leaves out of the norm what another tensor parallel rank has too, and tells by a mark of Transformer
Engine's, which was dropped for grouped experts in 2.13, is set where a weight is not split, and is missing on
attention sinks. Every optimizer begins with `_get_param_groups`. There the modules of the model are known by
the names of their classes, and the marks are put right before optimizers copy them to their shards.
"""

from __future__ import annotations

from overlay.compat.projects import MEGATRON
from overlay.patch import Patch, Removal, one_target, replaced, variant
from overlay.patches.megatron.grad_norm.fix import make_param_groups
from overlay.patches.megatron.grad_norm.measure import make_init

_GROUPS = "megatron.core.optimizer:_get_param_groups"
_INIT = "megatron.core.optimizer.optimizer:ChainedOptimizer.__init__"

PATCH = Patch(
    id="megatron.grad-norm",
    summary="Experts, undivided weights and attention sinks count once in the gradient norm",
    why=(
        "With tensor parallelism Megatron counts a parameter without a mark on the first tensor parallel "
        "rank only, and one with a mark on all. Transformer Engine 2.13 stopped marking grouped expert "
        "weights: of all experts (TP-1)/TP is missing from the norm, so that it is reported too small and "
        "clipped too weakly. Weights that are not split, as of the down projections of multi-latent "
        "attention, are marked and count TP times, up to Megatron 0.16. Learnable attention sinks have "
        "never been marked. With the patch the marks are right before an optimizer is built. The norm of a "
        "running job changes with them, and the size of an update that is clipped. In the first step and in "
        "every hundredth Megatron's own norm is taken too, so that `overlay status` has both: one more norm "
        "and its collective."
    ),
    changes=("numbers",),
    met=(
        "Tensor parallelism, with grouped experts on Transformer Engine 2.13 or later (Megatron before 0.19),"
        " multi-latent attention (Megatron before 0.17) or softmax_type=learnable (any)."
    ),
    upstream=(
        "NVIDIA/Megatron-LM#5916",
        "NVIDIA/Megatron-LM#3213",
        "NVIDIA/Megatron-LM#7530",
        "NVIDIA/Megatron-LM#7452",
    ),
    remove=Removal(
        when="Megatron marks experts (0.19 does), not what is duplicated (0.17 does not), and marks sinks",
        test="tests/real/test_contracts.py::test_upstream_alone_keeps_the_contract",
    ),
    targets=one_target(
        MEGATRON,
        variant(
            "0.12",
            ">=0.12.0.dev0,<0.21.0.dev0",
            replaced(
                _GROUPS,
                make_param_groups,
                "43b3910c5bb9",  # 0.12
                "e98b8dddf290",  # 0.13
                "6b884bf618f1",  # 0.14, 0.15
                "1e3c29cae095",  # 3714d81d, before 0.16
                "ea5951feb9cf",  # 0.16, 0.17
                "047b90f92eab",  # 0.18, 0.19, main and dev of August 2026
            ),
            replaced(
                _INIT,
                make_init,
                "f00fee01762c",  # every release
                "cfa97f0c8830",  # d48bd6be0, dev of July 2026
            ),
        ),
    ),
)
