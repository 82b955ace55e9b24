"""What `slime.eps-clip-c` counts."""

from __future__ import annotations

from overlay.effect import effect

EFFECT = effect(
    __name__,
    "micro-batch",
    did="bounded the loss of",
    always=True,
)
