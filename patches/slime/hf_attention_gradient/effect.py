"""What `slime.hf-attention-gradient` counts."""

from __future__ import annotations

from overlay.effect import effect

EFFECT = effect(
    __name__,
    "backward pass",
    did="corrected",
    always=True,
)
