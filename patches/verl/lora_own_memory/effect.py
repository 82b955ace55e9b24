"""What `verl.lora-own-memory` counts."""

from overlay.effect import effect

EFFECT = effect(__name__, "adapter", did="copied", always=True)
