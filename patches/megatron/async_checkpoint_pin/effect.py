"""What `megatron.async-checkpoint-pin` counts."""

from overlay.effect import effect

EFFECT = effect(__name__, "save", did="kept what is staged of", always=True)
