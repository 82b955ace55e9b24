"""What `slime.value-temperature` counts."""

from overlay.effect import Figure, effect

EFFECT = effect(
    __name__,
    "micro-batch",
    Figure(name="temperature", says="what slime would have divided them by", combine="max"),
    did="took the values undivided of",
    always=True,
    then="without it divided by {temperature}",
)
