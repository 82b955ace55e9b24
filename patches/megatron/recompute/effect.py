"""What `megatron.recompute` counts."""

from overlay.effect import Figure, effect

EFFECT = effect(
    __name__,
    "backward pass",
    Figure(name="released", says="the most bytes that one of them let go of", unit="bytes", combine="max"),
    Figure(name="held", says="inputs that something else held, so that they stayed"),
    did="let go of inputs in",
    then="up to {released} at once",
)
