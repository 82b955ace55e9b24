"""What `megatron.mtp-without-tokens` counts."""

from overlay.effect import effect

EFFECT = effect(
    __name__,
    "shifted mask",
    did="found without a token",
    then="without it such a micro-batch is a loss and a gradient of NaN, unless losses are per token",
)
