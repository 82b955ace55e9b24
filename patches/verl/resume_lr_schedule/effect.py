"""What `verl.resume-lr-schedule` counts."""

from overlay.effect import Figure, effect

EFFECT = effect(
    __name__,
    "load",
    Figure(
        name="steps", says="the most steps that the schedule has come back with", unit="steps", combine="max"
    ),
    did="restored the schedule of",
    then="without it {steps} behind",
)
