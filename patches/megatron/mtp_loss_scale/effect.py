"""What `megatron.mtp-loss-scale` counts."""

from overlay.effect import effect

EFFECT = effect(__name__, "count of tokens", did="made over all context parallel ranks")
