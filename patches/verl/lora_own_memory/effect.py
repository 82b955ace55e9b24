"""What `verl.lora-own-memory` counts."""

from __future__ import annotations

from overlay.effect import effect

EFFECT = effect(
    __name__,
    "adapter",
    did="copied",
    always=True,
)
