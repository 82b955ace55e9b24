"""What slime asks of the device's memory, on the stand-in for CUDA, printed as one line of JSON.

Run by `test_slime_device.py` with a revision of slime first on the path.
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
from typing import Any

import torch
import torch.distributed as dist

from overlay.compat.cuda_on_cpu import cuda_on_cpu, replaced


def _found() -> dict[str, Any]:
    memory = importlib.import_module("slime.utils.memory_utils")
    backups = importlib.import_module("slime.utils.tensor_backper")
    ids = importlib.import_module("slime.ray.utils")
    memory.clear_memory(clear_host_memory=True)
    weights = {"weight": torch.nn.Parameter(torch.tensor([1.0, 2.0], device="cuda"))}
    backuper = backups.TensorBackuper.create(weights.items, None)
    backuper.backup("actor")
    with torch.no_grad():
        weights["weight"].zero_()
    backuper.restore("actor")
    return {
        "memory": memory.print_memory("on a CPU"),
        "uuid": ids.get_physical_gpu_id(),
        "restored": weights["weight"].tolist(),
        **_collectives(),
    }


def _collectives() -> dict[str, Any]:
    """Reduce in groups that slime may reload, and count how often it collects garbage for that."""
    groups = importlib.import_module("slime.utils.reloadable_process_group")
    collected: list[int] = []
    with replaced(gc, "collect", lambda *_generation: collected.append(1)):
        groups.monkey_patch_torch_dist()
        value = torch.tensor([3.0], device="cuda")
        for _ in range(4):
            dist.all_reduce(value)
        free = groups.available_memory()["free_GB"]
    return {"free": free, "collected": len(collected), "reduced": value.tolist()}


def main() -> None:
    """Print it."""
    store = dist.HashStore()  # type: ignore[attr-defined]
    with cuda_on_cpu():
        dist.init_process_group("nccl", store=store, rank=0, world_size=1)
        found = _found()
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
