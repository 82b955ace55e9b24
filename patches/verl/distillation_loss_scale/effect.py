"""What `verl.distillation-loss-scale` counts."""

from overlay.effect import effect

EFFECT = effect(__name__, "micro-batch", did="corrected the numbers of")
