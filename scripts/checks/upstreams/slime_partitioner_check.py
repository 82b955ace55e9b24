"""Divide samples with slime's real balancing, with overlay and without, and print both as JSON.

    python slime_partitioner_check.py SEED [PACKAGE]

The revision of slime, or of the package that forks it, that stands first on the path is used.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import overlay
from overlay.compat.slime_on_cpu import stand_in
from overlay.compat.slime_on_cpu.balancing import look


def main(seed: str, package: str = "slime") -> None:
    """Print the findings."""
    overlay.enable([f"{package}.fast-partitioner"], strict=True)
    stand_in(package)
    module = importlib.import_module(f"{package}.utils.seqlen_balancing")
    report: dict[str, Any] = {"path": module.__file__, "overlay": look(module, seed)}
    report["states"] = {patch.patch: patch.state for patch in overlay.status().patches}
    overlay.disable()
    report["plain"] = look(module, seed)
    print(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
