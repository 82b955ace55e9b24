"""What `slime.group-timeouts` counts."""

from overlay.effect import effect

EFFECT = effect(__name__, "group", did="made anew", always=True)
