"""What `megatron.grad-norm` counts."""

from overlay.effect import Figure, effect

EFFECT = effect(
    __name__,
    "parameter",
    Figure(name="elements", says="elements of these parameters on this rank"),
    did="marked otherwise",
    then="{elements} elements",
    always=True,
)
