"""What `miles.capped-partitions` counts."""

from overlay.effect import Figure, effect

EFFECT = effect(
    __name__,
    "step",
    Figure(name="over", says="micro-batches over the budget that miles' own split has"),
    Figure(name="fullest", says="tokens of the fullest of them, over the budget", combine="max"),
    then="without it {over} micro-batches over the budget, the fullest {fullest} times",
)
