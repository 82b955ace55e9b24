"""The partitions are verl's own, of lists and of tensors, in less than half the calls."""

import random
from functools import partial
from typing import Any

from overlay.compat.slime_on_cpu import balancing
from overlay.patch import Contract


def tensors(module: Any, seed: str) -> list[Any]:
    """Return verl's partitions of drawn workloads. Those of int32 overflow, and are refused."""
    import torch

    draw = random.Random(seed)
    results = []
    for _ in range(60):
        parts = draw.randint(1, 12)
        values = [draw.randint(0, draw.choice((1, 3, 50, 40_000))) for _ in range(parts * draw.randint(1, 8))]
        kind = getattr(torch, draw.choice(("int64", "int32", "float32")))
        workload = module.calculate_workload(torch.tensor(values, dtype=kind))
        balance = module.get_seqlen_balanced_partitions
        results += [balancing.divide(balance, workload, parts, equal_size=equal) for equal in (False, True)]
    return results


CONTRACT = Contract(check=partial(balancing.check, "verl", also=tensors), before=("verl.protocol",))
