"""What `slime.teacher-temperature` counts."""

from __future__ import annotations

from overlay.effect import effect

EFFECT = effect(
    __name__,
    "request",
    did="corrected the temperature of",
)
