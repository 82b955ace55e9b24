"""What the real balancing of slime, its fork or verl makes of values, and how many calls it takes."""

from __future__ import annotations

import importlib
import random
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from overlay.compat.slime_on_cpu import stand_in
from overlay.testing import assert_applied, enable, without


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


def check(package: str, seed: str, also: Callable[[Any, str], object] | None = None) -> str:
    """Return what is wrong with the fast partitioner of an upstream, by what that makes alone.

    `also` gets the module and the seed, and returns what else has to be the same.
    """
    stand_in(package)
    enable(f"{package}.fast-partitioner")
    module = importlib.import_module(f"{package}.utils.seqlen_balancing")
    assert_applied(f"{package}.fast-partitioner")
    ours, theirs = without(lambda: {**look(module, seed), "also": also and also(module, seed)})
    other = [name for name in ours if name != "calls" and ours[name] != theirs[name]]
    if other:
        return f"other partitions than without the patch ({', '.join(other)})"
    fewer, more = ours["calls"]
    if not more < 2.6 * fewer:
        return f"{fewer} calls become {more} for twice the samples in twice the parts"
    return "" if more < theirs["calls"][1] / 2 else "as slow as without the patch"
