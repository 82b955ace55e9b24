"""What `slime.group-baseline` counts."""

from overlay.effect import Figure, effect

EFFECT = effect(
    __name__,
    "rollout",
    Figure(name="rewards", says="rewards that slime would have normalised otherwise"),
    Figure(name="off", says="the most by which one would have been off", combine="max"),
    then="without it {rewards} rewards off, by up to {off}",
)
