"""`megatron.attention-logit-memory`: the greatest attention logit keeps no graph, and is that of one step.

Two functions are wrapped: the forward that collects the logit keeps it without its graph, and the function
that logs it starts anew afterwards.
"""

from __future__ import annotations

from overlay.compat.projects import MEGATRON
from overlay.patch import Absent, Patch, Removal, Target, known, replaced, variant
from overlay.patches.megatron.attention_logit_memory.fix import make_clip, make_forward

_FORWARD = "megatron.core.extensions.transformer_engine:TEDotProductAttention.forward"
_CLIP = "megatron.core.optimizer.qk_clip:clip_qk"

PATCH = Patch(
    id="megatron.attention-logit-memory",
    revision=1,
    summary="The greatest attention logit keeps no graph in memory",
    why=(
        "With log_max_attention_logit or qk_clip each attention layer keeps the greatest logit that it has "
        "seen, with the graph that it was computed by: that of every micro-batch since it was last reset. "
        "qk_clip resets it at each step, log_max_attention_logit alone never does, so that the graphs of "
        "all micro-batches stay, and what is logged is the greatest logit since the job began. With the "
        "patch nothing of a graph is kept, and what is logged is of one step, as from 0.19 on."
    ),
    changes=("memory", "numbers"),
    met=(
        "log_max_attention_logit or qk_clip, with Transformer Engine 2.9 or later. No number changes but the "
        "one that is logged."
    ),
    upstream=("NVIDIA/Megatron-LM#5067",),
    remove=Removal(
        version="0.19.0",
        when="megatron-core 0.19 detaches the logit, and resets it",
        test="tests/real/test_megatron_contracts.py::test_upstream_alone_keeps_no_graph_of_logits",
    ),
    targets=(
        Target(
            project=MEGATRON,
            variants=(
                variant(
                    "0.16",
                    ">=0.16.0.dev0,<0.19.0.dev0",
                    # Commits up to December 2025; 0.16 to 0.18
                    replaced(_FORWARD, make_forward, "6e69207bf092", "121a519b94fb"),
                    # Commits up to December 2025; 0.16; 0.17 and 0.18
                    replaced(_CLIP, make_clip, "eba648e03e46", "e38a0df6fb6a", "bd0482fb39fa"),
                ),
                variant(
                    "0.12",
                    ">=0.12.0.dev0,<0.16.0.dev0",
                    Absent(site=_CLIP),
                    verdict="not-affected",
                    reason="this Megatron does not collect attention logits",
                ),
                variant(
                    "0.19",
                    ">=0.19.0.dev0",
                    known(_CLIP, "e01112e0c766"),
                    verdict="fixed-upstream",
                    reason="this Megatron detaches the logit, and resets it",
                ),
            ),
        ),
    ),
)
