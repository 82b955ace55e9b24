"""slime's `compute_advantages_and_returns` on ranks: what each of them makes of its share of a batch."""

from __future__ import annotations

import functools
import os
import random
from typing import TYPE_CHECKING, Any

from overlay.compat.slime_on_cpu.advantages import BATCHES, whiten

if TYPE_CHECKING:
    from collections.abc import Callable

SEED = os.environ["OVERLAY_TEST_SEED"]


def cases(world: int) -> list[tuple[str, dict[str, int], Callable[[], Any]]]:
    """Return the cases on `world` ranks, of which two or all share a sample."""
    draw = random.Random(f"{SEED}/whiten")
    fresh = tuple(
        tuple((total, draw.randint(1, total - 1)) for total in draw.choices(range(9, 60), k=3))
        for _ in range(2)
    )
    batches = {**BATCHES, "fresh": fresh}
    found: list[tuple[str, dict[str, int], Callable[[], Any]]] = []
    for context in (1, 2, world):
        for name, batch in batches.items():
            for kind in ("rewards", "large rewards"):
                shares = [batch[index % 2] for index in range(world // context)]
                call = functools.partial(whiten, shares, kind, SEED)
                found.append((f"{name}, cp{context}, {kind}", {"context": context}, call))
    masked = functools.partial(whiten, BATCHES["plain"], "masked", SEED)
    return [*found, ("masked, cp2", {"context": 2}, masked)]
