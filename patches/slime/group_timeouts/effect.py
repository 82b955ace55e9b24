"""What `slime.group-timeouts` counts."""

from __future__ import annotations

from overlay.effect import effect

EFFECT = effect(
    __name__,
    "group",
    did="made anew",
    always=True,
)
