"""What `megatron.dynamic-cp-names` counts."""

from __future__ import annotations

from overlay.effect import effect

EFFECT = effect(
    __name__,
    "set of groups",
    did="made",
    always=True,
)
