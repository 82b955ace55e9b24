"""What `slime.value-temperature` counts."""

from __future__ import annotations

from overlay.effect import effect

EFFECT = effect(
    __name__,
    "micro-batch",
    did="took the values undivided of",
    always=True,
)
