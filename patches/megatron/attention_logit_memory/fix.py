"""What takes the place of the function that logs the greatest attention logit."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any


def make_clip(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build `clip_qk`, after which each layer begins anew, as it does upstream only if it clips."""
    from overlay.patches.megatron.attention_logit_memory.effect import EFFECT

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
