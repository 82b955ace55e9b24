"""What `verl.weight-transfer-order` counts."""

from overlay.effect import effect

EFFECT = effect(__name__, "transfer", did="waited for the device after", always=True)
