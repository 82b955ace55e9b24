"""What `verl.sft-balance` counts."""

from overlay.effect import Figure, effect

EFFECT = effect(
    __name__,
    "batch",
    Figure(
        name="most_work",
        says="most work of a rank as the batch came, over the same as it was balanced",
        combine="max",
    ),
    did="reordered",
    then="without it the rank with most work had up to {most_work} times as much",
)
