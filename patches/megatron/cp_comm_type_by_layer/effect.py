"""What `megatron.cp-comm-type-by-layer` counts."""

from overlay.effect import effect

EFFECT = effect(__name__, "layer", did="corrected the communication of")
