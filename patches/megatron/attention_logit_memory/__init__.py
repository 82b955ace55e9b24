"""`megatron.attention-logit-memory`: the attention logit that is logged, and its memory, are of one step."""

from typing import Any

from overlay.compat.projects import MEGATRON
from overlay.effect import effect
from overlay.patch import Patch, around, one_target, replaced, variant

EFFECT = effect(__name__, "logit of a layer", did="begun anew", always=True)


@around
def clip_qk(original: Any, model: Any, log_max_only: bool = False) -> Any:
    """Begin anew in each layer after the logit is logged, as upstream does only in those that it clips."""
    greatest = original(model, log_max_only)
    for chunk in model:
        for module in chunk.modules():
            if (logits := getattr(module, "current_max_attn_logits", None)) is not None:
                # The same memory, as a replayed CUDA graph writes there and sets no attribute.
                module.current_max_attn_logits = logits.detach().fill_(float("-inf"))
                EFFECT.changed += 1
    return greatest


PATCH = Patch(
    id="megatron.attention-logit-memory",
    summary="The logged maximum attention logit, and the memory for it, are of one step only",
    why="With log_max_attention_logit each attention layer keeps the greatest logit that it has seen, and "
    "the graph of every micro-batch with it. qk_clip resets it at each step, but not in layers of "
    "multi-token prediction, and logging alone never does: memory runs out, and the greatest logit since the "
    "job began is logged. With the patch it is reset once it has been logged.",
    changes=("memory", "numbers"),
    met="log_max_attention_logit without qk_clip, or either with multi-token prediction, on Transformer "
    "Engine 2.9 or later.",
    evidence="megatron-core 0.19 begins each layer's logit anew once it is logged (NVIDIA/Megatron-LM#5067), "
    "but under CUDA graphs. What is logged is compared with the greatest logit of the step.",
    upstream=("NVIDIA/Megatron-LM#5067",),
    targets=one_target(
        MEGATRON, variant("0.16", replaced("megatron.core.optimizer.qk_clip:clip_qk", clip_qk))
    ),
)
