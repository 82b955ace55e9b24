"""What `slime.bridge-flags` counts."""

from __future__ import annotations

from overlay.effect import effect

EFFECT = effect(
    __name__,
    "flag",
    did="handed over",
)
