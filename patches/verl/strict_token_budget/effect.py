"""What `verl.strict-token-budget` counts."""

from overlay.effect import Figure, effect

EFFECT = effect(
    __name__,
    "batch",
    Figure(name="over", says="micro-batches over the budget that verl's own split has"),
    Figure(name="fullest", says="tokens of the fullest of them, over the budget", combine="max"),
    then="without it {over} micro-batches over the budget, the fullest {fullest} times",
    did="split otherwise",
)
