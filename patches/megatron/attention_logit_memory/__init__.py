"""`megatron.attention-logit-memory`: the attention logit that is logged, and its memory, are of one step.

The function that logs it is wrapped: it starts anew afterwards, as it does where it clips.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from overlay.compat.projects import MEGATRON
from overlay.effect import effect
from overlay.patch import Patch, one_target, replaced, variant

_CLIP = "megatron.core.optimizer.qk_clip:clip_qk"
EFFECT = effect(__name__, "logit of a layer", did="begun anew", always=True)


def make_clip(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build `clip_qk`, after which each layer begins anew, as it does upstream only if it clips."""

    @functools.wraps(original)
    def clip_qk(model: Any, log_max_only: bool = False) -> Any:
        greatest = original(model, log_max_only)
        if log_max_only:
            for chunk in model:
                for module in chunk.modules():
                    if (logits := getattr(module, "current_max_attn_logits", None)) is not None:
                        # The same memory, as a replayed CUDA graph writes there and sets no attribute.
                        module.current_max_attn_logits = logits.detach().fill_(float("-inf"))
                        EFFECT.changed += 1
        return greatest

    return clip_qk


PATCH = Patch(
    id="megatron.attention-logit-memory",
    revision=2,
    summary="The greatest attention logit that is logged is of one step, as is its memory",
    why=(
        "With log_max_attention_logit each attention layer keeps the greatest logit that it has seen, with "
        "the graph that it was computed by: that of every micro-batch since it was last reset. qk_clip "
        "resets it at each step, logging alone never does. So the graphs of all micro-batches stay until "
        "memory is out, and what is logged is the greatest logit since the job began. With the patch it is "
        "reset once it has been logged, as from 0.19 on. The graphs of one step are kept as before."
    ),
    changes=("memory", "numbers"),
    met=(
        "log_max_attention_logit without qk_clip, with Transformer Engine 2.9 or later. No number changes "
        "but the one that is logged."
    ),
    evidence=(
        "megatron-core 0.19 begins each layer's logit anew once it is logged (NVIDIA/Megatron-LM#5067). "
        "The contract compares what is logged with the greatest logit of the step, which 0.19 itself gets "
        "wrong under CUDA graphs."
    ),
    upstream=("NVIDIA/Megatron-LM#5067",),
    targets=one_target(
        MEGATRON,
        variant(
            "0.16",
            replaced(_CLIP, make_clip),
        ),
    ),
)
