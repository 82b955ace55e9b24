"""What `miles.fast-partitioner` counts."""

from __future__ import annotations

from overlay.effect import effect

EFFECT = effect(
    __name__,
    "partition",
    did="computed",
    always=True,
)
