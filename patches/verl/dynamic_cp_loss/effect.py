"""What `verl.dynamic-cp-loss` counts."""

from overlay.effect import Figure, effect

EFFECT = effect(
    __name__,
    "micro-batch",
    Figure(name="least", says="the least factor that verl's gradient would have had", combine="min"),
    Figure(name="most", says="the greatest", combine="max"),
    did="scaled",
    always=True,
    then="without it gradients of {least} to {most} times their size",
)
