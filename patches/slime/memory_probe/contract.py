"""Collectives find what they found, and memory is asked for, and cleared, once in a while."""

import random
from typing import Any

from overlay.compat.contracts.slime import BEFORE, on_megatron
from overlay.compat.slime_on_cpu import imported
from overlay.patch import Contract
from overlay.testing import with_patches


@on_megatron()
def wrong(seed: str) -> str:
    """Return what a collective finds, or how often memory is asked for, where that is not as it should be."""
    import torch
    import torch.distributed as dist

    groups = imported("slime.utils.reloadable_process_group")
    draw = random.Random(seed)
    free = [80.0]
    asked: list[float] = []
    cleared: list[bool] = []

    def mem_get_info(_device: object) -> tuple[float, float]:
        asked.append(free[0])
        return free[0] * 2**30, 80.0 * 2**30

    torch.cuda.current_device = lambda: 0
    torch.cuda.mem_get_info = mem_get_info  # type: ignore[assignment]
    groups.clear_memory = lambda *_: cleared.append(True)
    reduce = dist.all_reduce
    groups.monkey_patch_torch_dist()
    if dist.all_reduce is reduce:
        return "slime's collectives are not in place"
    group: Any = groups.ReloadableProcessGroup(dist.group.WORLD, [0])
    count = draw.randint(500, 900)
    for way in ("function", "method"):
        for free[0] in (80.0, 2.0):
            asked.clear()
            cleared.clear()
            for number in range(count):
                found = _reduced(group, float(number), way)
                if found != number:
                    return f"the sum of {number} over one rank is {found}"
            if not count // 100 <= len(asked) <= count // 50:
                return f"before {count} collectives, by their {way}, memory was asked for {len(asked)} times"
            if len(cleared) != (len(asked) if free[0] < 3 else 0):
                return f"with {free[0]} GB free, caches were cleared {len(cleared)} times"
    return _untold(group)


def _reduced(group: Any, number: float, way: str) -> float:
    """Return a number summed over the group, by torch's function or by the method that it calls."""
    import torch
    import torch.distributed as dist

    tensor = torch.tensor([number])
    if way == "function":
        dist.all_reduce(tensor, group=group)
    else:
        group.allreduce([tensor]).wait()
    return tensor.item()


def _untold(group: Any) -> str:
    """Return what is missing of what slime says of memory where a collective fails."""
    import torch
    import torch.distributed as dist

    try:
        dist.broadcast(torch.zeros(1), src=7, group=group)
    except Exception as error:  # noqa: BLE001 -- whatever torch says of a rank that is not there
        noted = getattr(error, "__notes__", [])
        return "" if any("mem_info" in note for note in noted) else f"{error!r} says nothing of memory"
    return "a broadcast from nowhere has not failed"


CONTRACT = Contract(check=with_patches(wrong, "slime.memory-probe"), before=BEFORE)
