"""What `verl.fsdp-output-memory` counts."""

from overlay.effect import Figure, effect

EFFECT = effect(
    __name__,
    "micro-batch",
    Figure(name="outputs", says="outputs that no longer hold the graph of their micro-batch"),
    did="detached the outputs of",
    always=True,
    then="{outputs} outputs",
)
