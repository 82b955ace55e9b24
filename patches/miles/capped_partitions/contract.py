"""Balanced by FLOPs, no micro-batch of more than one sample exceeds the budget."""

from __future__ import annotations

from overlay.patch import Contract
from overlay.patches.miles.capped_partitions import PATCH
from overlay.testing import assert_applied, enable


def check(seed: str) -> str:
    """Schedule rollouts with miles' own `build_dp_schedule`."""
    import importlib

    from overlay.compat.slime_on_cpu import stand_in
    from overlay.compat.slime_on_cpu.schedules import cases, wrong

    stand_in("miles")
    enable(PATCH.id)
    module = importlib.import_module("miles.utils.dp_schedule")
    assert_applied(PATCH.id)
    return wrong(module, [one for one in cases(seed) if len(one["lengths"]) < 100][:60])


CONTRACT = Contract(check=check, before=("megatron.core", "ray", "tensordict"))
