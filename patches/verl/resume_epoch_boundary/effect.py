"""What `verl.resume-epoch-boundary` counts."""

from overlay.effect import effect

EFFECT = effect(__name__, "resume", did="went on to the next epoch after")
