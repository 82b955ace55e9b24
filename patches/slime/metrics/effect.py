"""What `slime.metrics` counts."""

from overlay.effect import effect

EFFECT = effect(__name__, "log", did="added figures to", always=True)
