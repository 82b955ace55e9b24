"""What `megatron.agreement` counts."""

from overlay.effect import effect

EFFECT = effect(__name__, "comparison", did="made", always=True)
