"""What `megatron.masked-loss-cp` counts."""

from __future__ import annotations

from overlay.effect import effect

EFFECT = effect(
    __name__,
    "micro-batch",
    did="weighed the loss of",
    always=True,
)
