"""Started on every rank of the worksite: compares ranks that are alike, that differ, and that are silent."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import torch.distributed as dist

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
SHORT, TURNS = 3.0, 5


def tried(group: Any = None, timeout: float = 30.0) -> dict[str, Any]:
    """Compare the ranks of a group, and return what came of it and in how many seconds."""
    import overlay

    begin = time.perf_counter()
    try:
        overlay.agree(group, timeout)
    except overlay.AgreementError as error:
        said = str(error)
    else:
        said = ""
    return {"said": said, "seconds": time.perf_counter() - begin}


def alike() -> dict[str, Any]:
    """Run where all ranks are armed: they agree, then one changes its mind, and changes it back."""
    import fakeup.core

    import overlay

    found: dict[str, Any] = {"value": fakeup.core.scale(1), "first": tried()}
    turns = []
    for _ in range(TURNS):
        dist.barrier()
        turns.append(tried())
    found["turns"] = turns
    some = dist.new_group([1, 3, 4])
    found["some"] = tried(some)
    if RANK == WORLD - 3:
        overlay.disable()
        overlay.enable("megatron.recompute")
    dist.barrier()
    found["changed"] = tried()
    if RANK == WORLD - 3:
        overlay.disable()
        overlay.enable()
    dist.barrier()
    found["changed back"] = tried()
    if RANK == 0:
        overlay.disable()
    dist.barrier()
    found["disabled"] = tried()
    return found


def different() -> dict[str, Any]:
    """Run where rank 1 has another upstream, and rank 2 runs no overlay code at all."""
    import fakeup.core

    found: dict[str, Any] = {"value": fakeup.core.scale(1), "overlay": "overlay" in sys.modules}
    armed, led_by_silent = dist.new_group([0, 1, 3]), dist.new_group([2, 3])
    if found["overlay"]:
        found["armed"] = tried(armed)
        found["all"] = tried(None, SHORT)
        found["led by a silent rank"] = tried(led_by_silent, SHORT) if RANK == 3 else {}
    return found


if __name__ == "__main__":
    dist.init_process_group("gloo")
    result = {"alike": alike, "different": different}[sys.argv[1]]()
    dist.barrier()
    sys.stdout.write("\n" + json.dumps(result) + "\n")
    sys.stdout.flush()
    dist.destroy_process_group()
