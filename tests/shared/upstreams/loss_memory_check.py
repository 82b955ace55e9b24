"""Measure slime's `get_log_probs_and_entropy` as it is and with overlay, in one process, and print JSON.

    python loss_memory_check.py [--tokens T] [--vocabulary V] [--turns N]

The revision of slime stands first on PYTHONPATH. A figure of memory is the peak beyond the logits in N, the
size of the logits; one of time the least of N turns, in seconds of the processor on a CPU, where one thread
works, and of the clock on a GPU. With `--turns 0` overlay is measured alone.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

os.environ["TORCHDYNAMO_DISABLE"] = "1"

import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu

import overlay
from overlay.compat.slime_on_cpu import import_slime
from overlay.patches.slime.loss_memory.contract.memory import CASES, DEVICE, Step


def main() -> None:
    """Measure all cases."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo" if DEVICE == "cpu" else "nccl",
        store=torch._C._distributed_c10d.HashStore(),
        rank=0,
        world_size=1,
    )
    mpu.initialize_model_parallel(create_gloo_process_groups=False)
    (module,) = import_slime("loss")
    found: dict[str, Any] = {}
    for case in CASES:
        step = Step(module, case, options.tokens, options.vocabulary)
        # Without a turn nobody compares with upstream, which takes most of the memory and of the time.
        rows: dict[str, Any] = {"upstream": {"peak": step.peak()} if options.turns else {}}
        times: dict[str, list[float]] = {"upstream": [], "overlay": []}
        for _ in range(options.turns):
            times["upstream"].append(step.seconds())
            overlay.enable("slime.loss-memory", strict=True)
            times["overlay"].append(step.seconds())
            overlay.disable()
        overlay.enable("slime.loss-memory", strict=True)
        rows["overlay"] = {"peak": step.peak()}
        if step.gradient:
            step = Step(module, case, options.tokens, options.vocabulary, in_place=True)
            rows["in place"] = {"peak": step.peak()}
        overlay.disable()
        for who, taken in times.items():
            if taken:
                rows[who]["seconds"] = min(taken)
        found[case] = rows
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu"
    print(json.dumps({"device": device, "torch": torch.__version__, "cases": found}))


if __name__ == "__main__":
    main()
