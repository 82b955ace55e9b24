"""The partitions are verl's own, in less than half the calls."""

import random
import sys
from collections import Counter
from typing import Any

from overlay.patch import Contract
from overlay.testing import assert_applied, enable, without

PATCH = "verl.fast-partitioner"


def check(seed: str) -> str:
    """Compare with the partitions that this very upstream makes without the patch."""
    enable(PATCH)
    from verl.utils import seqlen_balancing

    assert_applied(PATCH)

    def found() -> tuple[list[Any], int]:
        return _partitioned(seqlen_balancing, random.Random(seed)), _calls(seqlen_balancing, 256, 48)

    (ours, fast), (theirs, slow) = without(found)
    if ours != theirs:
        return "other partitions than without the patch"
    return "" if fast < slow / 2 else "as slow as without the patch"


def _partitioned(seqlen_balancing: Any, draw: random.Random) -> list[Any]:
    """Return verl's partitions of 60 drawn workloads, lists and tensors, into equal and unequal numbers."""
    import torch

    # Commits before 0.6.1 have no estimate of the work.
    workload = getattr(seqlen_balancing, "calculate_workload", torch.clone)
    results = []
    for _ in range(60):
        parts = draw.randint(1, 12)
        samples = parts * draw.randint(1, 8)
        most = draw.choice((1, 3, 50, 40_000))
        values: Any = [draw.randint(0, most) for _ in range(samples)]
        kind = draw.choice(("list", "int64", "int32", "float32"))
        if kind != "list":
            values = workload(torch.tensor(values, dtype=getattr(torch, kind)))
        for equal_size in (False, True):
            try:
                found = seqlen_balancing.get_seqlen_balanced_partitions(values, parts, equal_size=equal_size)
            except AssertionError as error:  # of workloads that overflow, such as those of int32
                found = str(error)
            results.append(found)
    return results


def _calls(seqlen_balancing: Any, samples: int, parts: int) -> int:
    """Return how many calls it takes to divide drawn samples: the same number on every machine."""
    draw = random.Random(samples)
    values = [draw.randint(1, 40_000) for _ in range(samples)]
    calls: Counter[str] = Counter()
    sys.setprofile(lambda _frame, event, _argument: calls.update([event]))
    try:
        seqlen_balancing.karmarkar_karp(values, parts, equal_size=False)
    finally:
        sys.setprofile(None)
    return calls["call"] + calls["c_call"]


CONTRACT = Contract(check=check, before=("verl.protocol",))
