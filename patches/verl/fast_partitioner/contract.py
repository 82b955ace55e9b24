"""The partitions are verl's own, in less than half the calls."""

import random
from typing import Any

from overlay.patch import Contract
from overlay.testing import assert_applied, enable, without

PATCH = "verl.fast-partitioner"


def check(seed: str) -> str:
    """Compare with the partitions that this very upstream makes without the patch."""
    enable(PATCH)
    from verl.utils import seqlen_balancing

    from overlay.compat.slime_on_cpu.balancing import calls

    assert_applied(PATCH)

    def found() -> tuple[list[Any], int]:
        return _partitioned(seqlen_balancing, random.Random(seed)), calls(seqlen_balancing, 240)

    (ours, fast), (theirs, slow) = without(found)
    if ours != theirs:
        return "other partitions than without the patch"
    return "" if fast < slow / 2 else "as slow as without the patch"


def _partitioned(seqlen_balancing: Any, draw: random.Random) -> list[Any]:
    """Return verl's partitions of 60 drawn workloads, lists and tensors, into equal and unequal numbers."""
    import torch

    results = []
    for _ in range(60):
        parts = draw.randint(1, 12)
        samples = parts * draw.randint(1, 8)
        most = draw.choice((1, 3, 50, 40_000))
        values: Any = [draw.randint(0, most) for _ in range(samples)]
        kind = draw.choice(("list", "int64", "int32", "float32"))
        if kind != "list":
            values = seqlen_balancing.calculate_workload(torch.tensor(values, dtype=getattr(torch, kind)))
        for equal_size in (False, True):
            try:
                found = seqlen_balancing.get_seqlen_balanced_partitions(values, parts, equal_size=equal_size)
            except AssertionError as error:  # of workloads that overflow, such as those of int32
                found = str(error)
            results.append(found)
    return results


CONTRACT = Contract(check=check, before=("verl.protocol",))
