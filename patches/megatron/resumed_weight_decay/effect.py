"""What `megatron.resumed-weight-decay` counts."""

from overlay.effect import Figure, effect

EFFECT = effect(
    __name__,
    "load",
    Figure(name="off", says="the most by which a weight decay would have been off", combine="max"),
    did="set the weight decay after",
    then="without it off by up to {off}",
)
