"""What `megatron.reduce-contiguous` counts."""

from overlay.effect import effect

EFFECT = effect(__name__, "sum", did="corrected", always=True)
