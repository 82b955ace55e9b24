"""A step of slime's loss under allgather CP, in which three ranks of four have no response token."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from loss_memory_cases import SEED, SHAPES

from overlay.compat.slime_on_cpu.losses import loss

if TYPE_CHECKING:
    from collections.abc import Callable


def cases(world: int) -> list[tuple[str, int, int, Callable[[], Any]]]:
    """Return the one case: what a rank that fails in a collective leaves behind is no place for another."""
    step = functools.partial(loss, SHAPES["one token"], seed=SEED, allgather_cp=True)
    return [("step", 1, world, step)]
