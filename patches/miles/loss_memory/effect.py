"""What `miles.loss-memory` counts."""

from __future__ import annotations

from overlay.effect import Figure, effect

EFFECT = effect(
    __name__,
    "micro-batch",
    Figure(
        name="kept_out",
        says="float32 logits of the response rows of the largest micro-batch, a copy of which miles keeps for the backward",
        unit="bytes",
        combine="max",
    ),
    did="took the loss of",
    always=True,
    then="at least {kept_out} less at the peak",
)
