"""Balanced by FLOPs, no micro-batch of more than one sample exceeds the budget."""

from __future__ import annotations

import importlib

from overlay.patch import Contract
from overlay.testing import with_patches


def wrong(seed: str) -> str:
    """Return what is wrong with a schedule of miles' own `build_dp_schedule`, empty if nothing is."""
    from overlay.compat.slime_on_cpu import schedules, stand_in

    stand_in("miles")
    module = importlib.import_module("miles.utils.dp_schedule")
    given = [one for one in schedules.cases(seed) if len(one["lengths"]) < 100][:60]
    return schedules.wrong(module, given)


CONTRACT = Contract(
    check=with_patches(wrong, "miles.capped-partitions"), before=("megatron.core", "ray", "tensordict")
)
