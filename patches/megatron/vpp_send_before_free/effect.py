"""What `megatron.vpp-send-before-free` counts."""

from overlay.effect import effect

EFFECT = effect(__name__, "send", did="kept in memory until it was done", always=True)
