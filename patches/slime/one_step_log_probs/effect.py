"""What `slime.one-step-log-probs` counts."""

from overlay.effect import effect

EFFECT = effect(__name__, "rollout", did="supplied the lengths of", always=True)
