"""slime's advantages by PPO on ranks that share samples: what each of them has of those of one process."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

from overlay.compat.slime_on_cpu.masked_gae import KINDS, look

if TYPE_CHECKING:
    from collections.abc import Callable

SEED = os.environ["OVERLAY_TEST_SEED"]


def cases(world: int) -> list[tuple[str, int, int, Callable[[], Any]]]:
    """Return the cases: with no, half of the, and all ranks to a sample."""
    return [
        (f"{kind}, cp{context}", 1, context, functools.partial(look, kind, SEED))
        for context in (1, 2, world)
        for kind in KINDS
    ]
