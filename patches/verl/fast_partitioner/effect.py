"""What `verl.fast-partitioner` counts."""

from overlay.effect import effect

EFFECT = effect(__name__, "partition", did="computed", always=True)
