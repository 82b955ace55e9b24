"""What `slime.eps-clip-c` counts."""

from overlay.effect import effect

EFFECT = effect(__name__, "micro-batch", did="bounded the loss of", always=True)
