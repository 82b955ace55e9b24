"""What takes the place of the functions that make scores for the load balancing loss."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any


def _wide(logits: Any) -> Any:
    """Return logits as float32, unless they are as wide already."""
    import torch

    from overlay.patches.megatron.sigmoid_aux_scores.effect import EFFECT

    # Not narrower: with moe_router_dtype=fp64 they are float64.
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    EFFECT.calls += 1
    EFFECT.changed += wide is not logits
    return wide


def make_scores(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build the function of 0.14 to 0.16. Fused, it is a kernel that does as it likes, and stays as it is."""

    def compute_routing_scores_for_aux_loss(
        logits: Any, topk: int, score_function: str, fused: bool = False, *more: Any, **options: Any
    ) -> Any:
        wide = logits if fused or score_function != "sigmoid" else _wide(logits)
        return original(wide, topk, score_function, fused, *more, **options)

    return functools.wraps(original)(compute_routing_scores_for_aux_loss)


def make_method(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build the method of 0.12 and 0.13."""

    def compute_routing_scores_for_aux_loss(self: Any, logits: Any) -> Any:
        return original(self, _wide(logits) if self.score_function == "sigmoid" else logits)

    return functools.wraps(original)(compute_routing_scores_for_aux_loss)
