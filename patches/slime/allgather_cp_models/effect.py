"""What `slime.allgather-cp-models` counts."""

from overlay.effect import effect

EFFECT = effect(__name__, "model", did="refused", always=True)
