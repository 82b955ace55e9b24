"""Divide drawn samples with slime's real balancing, with overlay and without, and print both as JSON.

    python slime_partitioner_check.py SEED [PACKAGE]

The revision of slime, or of the package that forks it, that stands first on the path is used.
"""

from __future__ import annotations

import importlib
import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import overlay
from overlay.compat.slime_on_cpu import stand_in


def divide(function: Any, values: Any, parts: int, *, equal_size: bool) -> Any:
    """Return the partitions, or how they were refused."""
    try:
        return function(values, parts, equal_size=equal_size)
    except Exception as error:  # noqa: BLE001 -- whatever it is, the test judges it
        return f"{type(error).__name__}: {error}"


def look(module: Any, seed: str) -> dict[str, Any]:
    """Return what the functions of the module make of drawn and of odd values."""
    draw = random.Random(seed)
    found = []
    for _ in range(400):
        high = draw.choice([1, 2, 5, 40_000, 10**16])
        values: list[float] = [draw.randint(0, high) for _ in range(draw.randint(1, 40))]
        if draw.random() < 0.2:
            values = [value / 8 for value in values]
        parts = draw.randint(1, len(values) + 1)
        for equal_size in (False, True):
            functions = (module.karmarkar_karp, module.get_seqlen_balanced_partitions)
            found += [divide(function, values, parts, equal_size=equal_size) for function in functions]
    odd = [([], 1), ([1, 2], 0), ([3, -1, 2], 2), ([1.5, float("inf"), 2.0], 2), ([1, 2, 3], 2), ([1], 3)]
    return {
        "drawn": found,
        "odd": [divide(module.karmarkar_karp, values, parts, equal_size=True) for values, parts in odd],
        "calls": [calls(module, samples) for samples in (100, 200)],
    }


def calls(module: Any, samples: int) -> int:
    """Count the calls that it takes to divide samples in a fifth as many parts: time, on any machine."""
    draw = random.Random(samples)
    values = [draw.randint(1, 40_000) for _ in range(samples)]
    counted: Counter[str] = Counter()
    sys.setprofile(lambda _frame, event, _argument: counted.update([event]))
    try:
        module.karmarkar_karp(values, samples // 5, equal_size=False)
    finally:
        sys.setprofile(None)
    return counted["call"] + counted["c_call"]


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
