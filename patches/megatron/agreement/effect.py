"""What `megatron.agreement` counts."""

from __future__ import annotations

from overlay.effect import effect

EFFECT = effect(
    __name__,
    "comparison",
    did="made",
    always=True,
)
