"""What `slime.partial-rollout-budget` counts."""

from overlay.effect import Figure, effect

EFFECT = effect(
    __name__,
    "request",
    Figure(
        name="over",
        says="tokens that these responses had already, and could have had once more",
        unit="tokens",
    ),
    did="shortened",
    then="without it up to {over} over the limit",
)
