"""What `verl.moe-aux-scale` counts."""

from __future__ import annotations

from overlay.effect import effect

EFFECT = effect(
    __name__,
    "step",
    did="told its tokens",
    always=True,
)
