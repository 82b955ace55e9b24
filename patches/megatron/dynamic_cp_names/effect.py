"""What `megatron.dynamic-cp-names` counts."""

from overlay.effect import effect

EFFECT = effect(__name__, "set of groups", did="made", always=True)
