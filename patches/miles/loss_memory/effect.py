"""What `miles.loss-memory` counts."""

from overlay.effect import Figure, effect

EFFECT = effect(
    __name__,
    "micro-batch",
    Figure(
        name="kept_out",
        says="the logits of response rows, most at once, of which miles keeps a copy",
        unit="bytes",
        combine="max",
    ),
    did="took the loss of",
    always=True,
    then="at least {kept_out} less at the peak",
)
