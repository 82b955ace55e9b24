"""What `verl.mooncake-mark` counts."""

from overlay.effect import effect

EFFECT = effect(__name__, "weight", did="kept a mark out of", always=True)
