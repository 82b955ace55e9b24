"""Measure slime's `get_log_probs_and_entropy` as it is and with overlay, in one process, and print JSON.

    python loss_memory_check.py [--tokens T] [--vocabulary V] [--turns N]

The revision of slime stands first on PYTHONPATH. A figure of memory is the peak beyond the logits in N, the
size of the logits; one of time the least of N turns, in seconds of the processor on a CPU, where one thread
works, and of the clock on a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

os.environ["TORCHDYNAMO_DISABLE"] = "1"

import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu

import overlay
from overlay.compat.live_bytes import LiveBytes
from overlay.compat.slime_on_cpu import import_slime

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

#: name -> temperature, entropy_coef, chunk size, share of response rows, whether there is a gradient
CASES: dict[str, tuple[float, float, int, float, bool]] = {
    "temperature 1, entropy as a metric": (1.0, 0.0, -1, 0.75, True),
    "temperature 0.8, entropy as a metric": (0.8, 0.0, -1, 0.75, True),
    "temperature 0.8, entropy in the loss": (0.8, 0.1, -1, 0.75, True),
    "the same in chunks of 256": (0.8, 0.1, 256, 0.75, True),
    "the same with 25% response rows": (0.8, 0.1, -1, 0.25, True),
    "temperature 0.8, no gradient": (0.8, 0.1, -1, 0.75, False),
    "the same in chunks of 256, no gradient": (0.8, 0.1, 256, 0.75, False),
}
SAMPLES = 4


class Step:
    """One call of slime's function, and its backward."""

    def __init__(
        self, module: Any, case: str, tokens: int, vocabulary: int, *, in_place: bool = False
    ) -> None:
        temperature, coefficient, chunk, share, self.gradient = CASES[case]
        self.module = module
        self.totals = [tokens // SAMPLES] * SAMPLES
        self.responses = [int(total * share) for total in self.totals]
        made = torch.Generator().manual_seed(0)
        self.leaf = torch.randn(1, sum(self.totals), vocabulary, generator=made).mul_(3).to(DEVICE)
        self.leaf.requires_grad_()
        words = [torch.randint(vocabulary, (total,), generator=made) for total in self.totals]
        self.words = [tokens.to(DEVICE) for tokens in words]
        self.coefficient = coefficient
        self.args = argparse.Namespace(
            allgather_cp=False,
            entropy_coef=coefficient,
            log_probs_chunk_size=chunk,
            loss_type="policy_loss",
            overlay_loss_in_place=in_place,
            qkv_format="thd",
            rollout_temperature=temperature,
        )

    def run(self, logits: Any) -> Any:
        """Return the gradient, or what there is without one. Nothing of the caller's may hold the logits."""
        with torch.set_grad_enabled(self.gradient):
            found = self.module.get_log_probs_and_entropy(
                logits.pop(),
                args=self.args,
                unconcat_tokens=self.words,
                total_lengths=self.totals,
                response_lengths=self.responses,
                with_entropy=True,
            )
            lists = found if isinstance(found, dict) else found[1]
            total = torch.cat(lists["log_probs"]).sum() + self.coefficient * torch.cat(lists["entropy"]).sum()
        del found, lists
        return torch.autograd.grad(total, self.leaf)[0] if self.gradient else total

    def peak(self) -> float:
        """Return the peak beyond the logits, in N."""
        return float(self.watched().peak / (self.leaf.numel() * 4))

    def trace(self) -> list[float]:
        """Return what is alive beyond the logits after each operation, in N."""
        return [size / (self.leaf.numel() * 4) for size in self.watched().trace]

    def watched(self) -> Any:
        """Run once, and return what was alive meanwhile."""
        logits = [self.leaf.clone()]
        with LiveBytes(self.leaf, logits[0]) as live:
            self.run(logits)
        return live

    def seconds(self) -> float:
        """Return how long it takes once."""
        logits = [self.leaf.clone()]
        if DEVICE == "cpu":
            start = time.process_time()
            self.run(logits)
            return time.process_time() - start
        torch.cuda.synchronize()
        start = time.perf_counter()
        self.run(logits)
        torch.cuda.synchronize()
        return time.perf_counter() - start


def main() -> None:
    """Measure all cases."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--trace", action="store_true", help="print also what is alive after each operation")
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
        rows: dict[str, Any] = {"upstream": {"peak": step.peak()}}
        if options.trace:
            rows["upstream"]["trace"] = step.trace()
        times: dict[str, list[float]] = {"upstream": [], "overlay": []}
        for _ in range(options.turns):
            times["upstream"].append(step.seconds())
            overlay.enable("slime.loss-memory", strict=True)
            times["overlay"].append(step.seconds())
            overlay.disable()
        overlay.enable("slime.loss-memory", strict=True)
        rows["overlay"] = {"peak": step.peak()}
        if options.trace:
            rows["overlay"]["trace"] = step.trace()
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
