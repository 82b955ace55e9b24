"""What `megatron.gated-norm-over-tp` counts."""

from overlay.effect import effect

EFFECT = effect(__name__, "gradient of a norm", did="summed over tensor parallel ranks", always=True)
