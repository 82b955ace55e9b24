"""`megatron.uniform-recompute`: the layers need be no multiple of those that are recomputed together.

The forward under recomputation is wrapped: while it runs, adding the number of layers of a chunk to a place
goes no further than the last layer.
"""

from __future__ import annotations

from overlay.compat.projects import MEGATRON
from overlay.patch import Absent, Patch, Present, Removal, fixed, known, one_target, replaced, variant
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
    remove=Removal(
        version="0.17.0",
        when="megatron-core 0.17 ends the last chunk at the last layer",
        test="tests/real/test_contracts.py::test_upstream_alone_keeps_the_contract",
    ),
    targets=one_target(
        MEGATRON,
        variant(
            "0.12",
            ">=0.12.0.dev0,<0.17.0.dev0",
            replaced(
                _FORWARD,
                make_forward,
                # 0.12; 0.13 and 0.14
                *("c6e0f9b5e98e", "9d1b6ccb3896"),
                # 0.15 and commits up to December 2025; 0.16; slime's images have one of these
                *("9ef288a98cde", "ddef52cd32f1"),
            ),
        ),
        fixed(
            "0.17",
            ">=0.16.0.dev0",
            # 0.17; a commit before August 2026, dev of August 2026
            known(_FORWARD, "f05f9ea27931", "aa64bad536d9", "2a28923d2b65"),
            reason="this Megatron ends the last chunk at the last layer",
        ),
        fixed(
            "0.18",
            ">=0.18.0.dev0",
            Present(site="megatron.core.recompute:checkpointed_forward"),
            Absent(site=_FORWARD),
            reason="this Megatron ends the last chunk at the last layer",
        ),
    ),
)
