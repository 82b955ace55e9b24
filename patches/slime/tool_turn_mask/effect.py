"""What `slime.tool-turn-mask` counts."""

from overlay.effect import Figure, effect

EFFECT = effect(
    __name__,
    "conversation",
    Figure(name="turns", says="turns of several results of tools"),
    then="{turns} turns of several results of tools",
)
