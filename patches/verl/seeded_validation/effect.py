"""What `verl.seeded-validation` counts."""

from overlay.effect import effect

EFFECT = effect(__name__, "metric", did="put the generator back after", always=True)
