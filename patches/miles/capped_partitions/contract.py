"""Balanced by FLOPs, no micro-batch of more than one sample exceeds the budget."""

import importlib

from overlay.compat.contracts.slime import contract


def wrong(seed: str) -> str:
    """Return what is wrong with a schedule of miles' own `build_dp_schedule`."""
    from overlay.compat.slime_on_cpu import schedules, stand_in

    stand_in("miles")
    module = importlib.import_module("miles.utils.dp_schedule")
    given = [one for one in schedules.cases(seed) if len(one["lengths"]) < 100][:60]
    return schedules.wrong(module, given)


CONTRACT = contract(wrong, "miles.capped-partitions")
