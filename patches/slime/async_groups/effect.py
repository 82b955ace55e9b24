"""What `slime.async-groups` counts."""

from overlay.effect import Figure, effect

EFFECT = effect(
    __name__,
    "rollout",
    Figure(name="kept", says="groups that waited when a rollout had all that it wanted"),
    Figure(name="most", says="of them, the most at once", combine="max"),
    did="kept groups after",
    then="{kept} groups went on to the next, at most {most} at once",
)
