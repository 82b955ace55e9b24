"""What `verl.moe-aux-scale` counts."""

from overlay.effect import Figure, effect

EFFECT = effect(
    __name__,
    "step",
    Figure(name="times", says="how many times too large verl's gradient would have been", combine="max"),
    did="told its tokens",
    always=True,
    then="without it a gradient {times} times too large",
)
