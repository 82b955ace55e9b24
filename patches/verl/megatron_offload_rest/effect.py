"""What `verl.megatron-offload-rest` counts."""

from overlay.effect import effect

EFFECT = effect(__name__, "tensor that stayed behind", did="moved or dropped", always=True)
