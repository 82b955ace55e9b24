"""What `megatron.grad-norm` counts."""

from overlay.effect import Figure, effect

EFFECT = effect(
    __name__,
    "parameter",
    Figure(name="elements", says="elements of these parameters on this rank"),
    Figure(name="norm", says="the norm of the last step in which both were taken", combine="max"),
    Figure(name="theirs", says="what Megatron alone would have reported there", combine="max"),
    did="marked otherwise",
    then="{elements} elements; without it a norm of {theirs} for one of {norm}",
)
