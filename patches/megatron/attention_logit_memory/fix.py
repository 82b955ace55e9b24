"""What takes the place of the functions that collect the greatest attention logit, and log it."""

from __future__ import annotations

import functools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any


def make_forward(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build the forward of attention, after which the logit that it keeps has no graph."""

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **options: Any) -> Any:
        out = original(self, *args, **options)
        if (logits := getattr(self, "current_max_attn_logits", None)) is not None:
            self.current_max_attn_logits = logits.detach()
        return out

    return forward


def make_clip(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build `clip_qk`, which starts anew where upstream does so only if it clips."""

    @functools.wraps(original)
    def clip_qk(model: Any, log_max_only: bool = False) -> Any:
        greatest = original(model, log_max_only)
        if log_max_only:
            for chunk in model:
                for module in chunk.modules():
                    if getattr(module, "current_max_attn_logits", None) is not None:
                        module.current_max_attn_logits = None
        return greatest

    return clip_qk
