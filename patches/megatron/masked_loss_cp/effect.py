"""What `megatron.masked-loss-cp` counts."""

from overlay.effect import Figure, effect

EFFECT = effect(
    __name__,
    "micro-batch",
    Figure(name="weight", says="what the last of them weighs, in what Megatron gives it", combine="max"),
    did="weighed the loss of",
    always=True,
    then="the last by {weight}",
)
