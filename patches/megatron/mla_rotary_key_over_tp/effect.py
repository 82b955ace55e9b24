"""What `megatron.mla-rotary-key-over-tp` counts."""

from overlay.effect import effect

EFFECT = effect(__name__, "layer's rotary key", did="given the gradient of all ranks", always=True)
