"""What `slime.vpp-ceiling` counts."""

from overlay.effect import Figure, effect

EFFECT = effect(
    __name__,
    "step",
    Figure(name="more", says="micro-batches more than slime would have taken"),
    did="rounded up",
    then="{more} micro-batches more",
)
