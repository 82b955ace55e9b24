"""One training step of slime's loss under allgather CP, of which some ranks have no response token."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

from loss_memory_cases import SHAPES, loss

if TYPE_CHECKING:
    from collections.abc import Callable


def cases(world: int) -> list[tuple[str, int, int, Callable[[], Any]]]:
    """Return the one case: what a rank that fails in a collective leaves behind is no place for another."""
    shape, coefficient = os.environ["CASE"].split("/")
    case = functools.partial(loss, SHAPES[shape], allgather_cp=True, entropy_coef=float(coefficient))
    return [("step", 1, world, case)]
