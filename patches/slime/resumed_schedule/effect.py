"""What `slime.resumed-schedule` counts."""

from overlay.effect import Figure, effect

EFFECT = effect(
    __name__,
    "load",
    Figure(
        name="off",
        says="the most samples that the schedule would have been off",
        unit="samples",
        combine="max",
    ),
    did="put the schedule back after",
    then="without it {off} off",
)
