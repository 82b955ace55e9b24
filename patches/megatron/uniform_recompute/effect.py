"""What `megatron.uniform-recompute` counts."""

from __future__ import annotations

from overlay.effect import effect

EFFECT = effect(
    __name__,
    "forward of a block",
    did="cut into chunks of which the last has fewer layers",
    always=True,
)
