"""What `slime.masked-gae` counts."""

from overlay.effect import Figure, effect

EFFECT = effect(
    __name__,
    "rollout",
    Figure(name="masked", says="tokens in it that are not trained", unit="tokens"),
    then="without it {masked} in the sums that are not trained",
)
