"""Worlds that follow each other, some of whose processes were in the one before (for `generations_main`)."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist
from megatron.core import parallel_state as mpu

from overlay.compat.cpu_steps import run_sft

#: Replaced, grown, shrunk, shrunk to one, and as at first; then one of the two is told something else.
GENERATIONS = ((0, 1), (0, 2), (3, 0, 1, 2), (3, 1), (1,), (0, 1), (2, 0))
CAP = 4


def case(number: int) -> dict[str, Any]:
    """Train, and once more when Megatron's groups have been laid out anew in the same world."""
    if number == len(GENERATIONS) - 1 and dist.get_rank() == 0:
        os.environ["OVERLAY_DCP"] = "mixed"
    world = dist.get_world_size()
    batch: dict[str, Any] = {"lengths": [CAP * world, *[3] * (2 * world - 1)], "cap": CAP}
    first = run_sft(**batch)
    mpu.destroy_model_parallel()
    mpu.initialize_model_parallel(create_gloo_process_groups=False, dynamic_context_parallel=True)
    return {"worst": [first["worst"], run_sft(**batch)["worst"]]}
