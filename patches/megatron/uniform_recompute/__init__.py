"""`megatron.uniform-recompute`: the layers need be no multiple of those that are recomputed together.

The forward under recomputation is wrapped: while it runs, adding the number of layers of a chunk to a place
goes no further than the last layer.
"""

from __future__ import annotations

from overlay.compat.projects import MEGATRON
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches.megatron.uniform_recompute.fix import make_forward

_FORWARD = "megatron.core.transformer.transformer_block:TransformerBlock._checkpointed_forward"

PATCH = Patch(
    id="megatron.uniform-recompute",
    summary="Uniform recomputation takes a last chunk of fewer layers",
    why=(
        "With recompute_method=uniform Megatron recomputes recompute_num_layers layers at a time. If the "
        "layers of a pipeline stage are no multiple of that, it asks for layers behind the last one, and "
        "the first forward dies with an IndexError. With the patch the last chunk has the layers that are "
        "left, as from 0.17 on."
    ),
    changes=("crashes",),
    met=(
        "recompute_granularity=full, recompute_method=uniform and a recompute_num_layers by which the layers "
        "of a pipeline stage cannot be divided."
    ),
    evidence=(
        "megatron-core 0.17 ends the last chunk at the last layer (NVIDIA/Megatron-LM#3562). Output and "
        "gradients are compared with a run without recomputation."
    ),
    upstream=("NVIDIA/Megatron-LM#3562",),
    targets=one_target(
        MEGATRON,
        variant(
            "0.12",
            replaced(_FORWARD, make_forward),
        ),
        tells=("megatron.core.recompute:checkpointed_forward",),
    ),
)
