"""`megatron.gate-of-own-heads`: a rank that has a part of a group of queries takes that part of the gate."""

from functools import wraps
from typing import Any

from overlay.compat.projects import MEGATRON
from overlay.effect import effect
from overlay.patch import Patch, one_target, replaced, variant

_ATTENTION = "megatron.core.transformer.attention"
_SITE = f"{_ATTENTION}:SelfAttention.get_query_key_value_tensors"
EFFECT = effect(__name__, "gate", did="took this rank's heads of", always=True)


def make_tensors(original: Any, module: Any) -> Any:
    """Slice the gate as upstream slices the queries, where it has not."""

    def get_query_key_value_tensors(self: Any, *args: Any, **named: Any) -> Any:
        found = original(self, *args, **named)
        # With a gate there are four.
        if len(found) < 4 or found[3].shape[2] == found[0].shape[2]:  # noqa: PLR2004 -- said above
            return found
        query, key, value, gate = found
        heads = query.shape[2]
        first = heads * (module.get_tensor_model_parallel_rank() % (gate.shape[2] // heads))
        EFFECT.changed += 1
        return query, key, value, gate[:, :, first : first + heads]

    return wraps(original)(get_query_key_value_tensors)


PATCH = Patch(
    id="megatron.gate-of-own-heads",
    summary="Gated attention works with more tensor parallel ranks than groups of queries",
    why="If there are more tensor parallel ranks than groups of queries, several ranks share a group, and "
    "each takes its own heads of it. In gated attention (Qwen3-Next, Qwen3.5) Megatron does so for the "
    "queries and not for the gate, so the first forward pass ends in a RuntimeError. With the patch both "
    "are the rank's own.",
    changes=("crashes",),
    met="attention_output_gate with a tensor parallel size greater than num_query_groups.",
    upstream=("NVIDIA/Megatron-LM#3575", "THUDM/slime#2221"),
    evidence="megatron-core 0.17 takes the same heads (NVIDIA/Megatron-LM#3575); each rank has its part of "
    "what one process computes.",
    targets=one_target(
        MEGATRON, variant("0.16", replaced(_SITE, make_tensors), f"{_ATTENTION}:Attention._apply_output_gate")
    ),
)
