"""The cases that verl 0.8.0 survives without overlay (see `ranks.engine_main`)."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from dynamic_cp_cases import TABLE

from overlay.compat.cpu_steps import run_sft

if TYPE_CHECKING:
    from dynamic_cp_cases import Case


def cases(_world: int) -> list[Case]:
    """Return the measured cases, but for the one that crashes."""
    survived = {name: case for name, case in TABLE.items() if name != "table/uneven"}
    return [(name, 1, 1, functools.partial(run_sft, **case)) for name, case in survived.items()]
