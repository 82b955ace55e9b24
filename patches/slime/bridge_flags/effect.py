"""What `slime.bridge-flags` counts."""

from overlay.effect import effect

EFFECT = effect(__name__, "flag", did="handed over")
