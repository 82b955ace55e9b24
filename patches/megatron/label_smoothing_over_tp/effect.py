"""What `megatron.label-smoothing-over-tp` counts."""

from overlay.effect import effect

EFFECT = effect(__name__, "micro-batch", did="smoothed the labels of", always=True)
