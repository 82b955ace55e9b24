"""What `verl.mooncake-mark` counts."""

from __future__ import annotations

from overlay.effect import effect

EFFECT = effect(
    __name__,
    "weight",
    did="kept a mark out of",
    always=True,
)
