"""slime's advantages by PPO on ranks that share samples: what each of them has of those of one process."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

from overlay.compat.slime_on_cpu.masked_gae import KINDS, layouts, look

if TYPE_CHECKING:
    from collections.abc import Callable

SEED = os.environ["OVERLAY_TEST_SEED"]


def cases(world: int) -> list[tuple[str, dict[str, int], Callable[[], Any]]]:
    """Return the cases: with no, half of the, and all ranks to a sample, in every layout of the release."""
    found = [
        (kind, context, layout)
        for context in (1, 2, world)
        for layout in (layouts() if context > 1 else ("zigzag",))
        for kind in (KINDS if layout == "zigzag" else ("penalty",))
    ]
    return [
        (
            ", ".join((kind, f"cp{context}", *([] if layout == "zigzag" else [layout]))),
            {"context": context},
            functools.partial(look, kind, SEED, layout),
        )
        for kind, context, layout in found
    ]
