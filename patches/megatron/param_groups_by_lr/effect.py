"""What `megatron.param-groups-by-lr` counts."""

from overlay.effect import effect

EFFECT = effect(__name__, "optimizer", did="given the parameter groups that are its own", always=True)
