"""What `slime.checkpoint-step` counts."""

from overlay.effect import effect

EFFECT = effect(__name__, "load", did="put the step back after")
