"""What `verl.multi-turn-returns` counts."""

from overlay.effect import effect

EFFECT = effect(__name__, "batch", did="corrected the returns of")
