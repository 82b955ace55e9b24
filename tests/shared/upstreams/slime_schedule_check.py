"""Schedule rollouts with slime 0.3's real `build_dp_schedule`, with overlay and without, and print both.

    python slime_schedule_check.py SEED [PACKAGE]

The revision of slime, or of the package that forks it, that stands first on the path is used.
"""

from __future__ import annotations

import importlib
import json
import sys
from types import SimpleNamespace
from typing import Any

import overlay
from overlay.compat.slime_on_cpu import stand_in
from overlay.compat.slime_on_cpu.schedules import MODEL, cases, schedule


def look(module: Any, given: list[dict[str, Any]]) -> dict[str, Any]:
    """Return all that is looked at in one state of the module."""
    return {
        "by FLOPs": [schedule(module, one) for one in given],
        "by FLOPs, ranks too": [schedule(module, one, balance_data=True) for one in given],
        "by tokens": [schedule(module, one, balance_by_flops=False) for one in given],
        "static": [schedule(module, one, use_dynamic_batch_size=False) for one in given],
    }


def main(seed: str, package: str = "slime") -> None:
    """Print the findings."""
    given = cases(seed)
    overlay.enable([f"{package}.capped-partitions"], strict=True)
    stand_in(package)
    module = importlib.import_module(f"{package}.utils.dp_schedule")
    report: dict[str, Any] = {"path": module.__file__, "cases": given}
    report["states"] = {patch.patch: patch.state for patch in overlay.status().patches}
    report["overlay"] = look(module, given)
    overlay.disable()
    report["plain"] = look(module, given)
    count = importlib.import_module(f"{package}.utils.flops_utils").calculate_fwd_flops
    args = SimpleNamespace(**MODEL)
    report["flops"] = [[count([length], args) for length in one["lengths"]] for one in given]
    print(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
