"""What `slime.teacher-temperature` counts."""

from overlay.effect import effect

EFFECT = effect(__name__, "request", did="corrected the temperature of")
