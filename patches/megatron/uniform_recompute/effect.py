"""What `megatron.uniform-recompute` counts."""

from overlay.effect import effect

EFFECT = effect(
    __name__, "forward of a block", did="cut into chunks of which the last has fewer layers", always=True
)
