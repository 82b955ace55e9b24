"""What `verl.critic-loss-scale` counts."""

from overlay.effect import effect

EFFECT = effect(__name__, "micro-batch", did="scaled the loss of", always=True)
