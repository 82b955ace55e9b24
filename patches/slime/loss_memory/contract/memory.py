"""The memory and the time of slime's `get_log_probs_and_entropy` and its backward, on one rank."""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch

from overlay.compat.live_bytes import LiveBytes

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
        self.words = [torch.randint(vocabulary, (total,), generator=made).to(DEVICE) for total in self.totals]
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
        logits = [self.leaf.clone()]
        with LiveBytes(self.leaf, logits[0]) as live:
            self.run(logits)
        return float(live.peak / (self.leaf.numel() * 4))

    def seconds(self) -> float:
        """Return how long it takes once."""
        logits = [self.leaf.clone()]
        clock = time.process_time if DEVICE == "cpu" else time.perf_counter
        wait = (lambda: None) if DEVICE == "cpu" else torch.cuda.synchronize
        wait()
        start = clock()
        self.run(logits)
        wait()
        return clock() - start
