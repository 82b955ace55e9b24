"""What `megatron.sigmoid-aux-scores` counts."""

from __future__ import annotations

from overlay.effect import effect

EFFECT = effect(
    __name__,
    "call",
    did="widened the logits of",
)
