"""What `megatron.sigmoid-aux-scores` counts."""

from overlay.effect import effect

EFFECT = effect(__name__, "call", did="widened the logits of")
