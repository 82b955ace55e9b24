"""What `megatron.moe-aux-scale` counts."""

from overlay.effect import Figure, effect

EFFECT = effect(
    __name__,
    "loss",
    Figure(name="factor", says="the most by which one would have been too small", combine="max"),
    did="scaled",
    then="without it up to {factor} times too small",
)
