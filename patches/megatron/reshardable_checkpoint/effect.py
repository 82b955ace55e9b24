"""What `megatron.reshardable-checkpoint` counts."""

from overlay.effect import Figure, effect

EFFECT = effect(
    __name__,
    "buffer",
    Figure(
        name="padding",
        says="the most elements of padding by which parameters would have been shifted",
        combine="max",
    ),
    did="saved unshifted",
    then="without it shifted by up to {padding} elements",
)
