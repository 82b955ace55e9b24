"""What `slime.hf-attention-gradient` counts."""

from overlay.effect import Figure, effect

EFFECT = effect(
    __name__,
    "backward pass",
    Figure(name="times", says="how often slime would have added up one gradient", combine="max"),
    did="corrected",
    always=True,
    then="without it {times} times the gradient",
)
