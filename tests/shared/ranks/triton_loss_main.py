"""The kernels of the loss in Triton's interpreter, on slices of a vocabulary: a process for each rank.

    python triton_loss_main.py RANK SIZE STORE SEED

Prints, as JSON, for each dtype and for both implementations, how far results are from float64 of the whole
vocabulary.
"""

from __future__ import annotations

import json
import os
import random
import sys
from typing import Any

import torch
import torch.distributed as dist

from overlay.patches._packed_loss import row_kernels
from overlay.patches._packed_loss.row_blocks import Rows
from overlay.patches._packed_loss.vocab_parallel import make_log_prob_entropy

ROWS = 9
KINDS = ("plain", "large", "offset", "masked", "one slice masked", "sure", "impossible")


def drawn(kind: str, width: int, made: torch.Generator) -> torch.Tensor:
    """Return logits [ROWS, width] of the whole vocabulary."""
    logits = torch.randn(ROWS, width, generator=made) * 3
    if kind == "large":
        logits *= 1e3
    elif kind == "offset":
        logits += 1e5
    elif kind == "masked":
        logits[:, torch.rand(width, generator=made) < 0.5] = -torch.inf
        logits[:, 0] = 1.0
    elif kind == "one slice masked":
        logits[:, width // 2 :] = -torch.inf
    elif kind == "sure":
        logits[:, 1] += 30
    elif kind == "impossible":
        logits[2] = -torch.inf
        logits[4, width - 1] = torch.nan
        logits[6, 0] = torch.inf
    return logits


def results(logits: Any, targets: Any, weights: Any, rows: Rows) -> list[Any]:
    """Return log-probabilities, entropies and the gradient of this rank's slice, in float64."""
    leaf = logits.clone().requires_grad_()
    found = make_log_prob_entropy()(leaf * 1, targets, rows)
    (gradient,) = torch.autograd.grad(found, leaf, [part.to(leaf.dtype) for part in weights])
    return [part.detach().double() for part in (*found, gradient)]


def expected(logits: Any, targets: Any, weights: Any, temperature: float) -> list[Any]:
    """Return the same of the whole vocabulary."""
    leaf = logits.double().requires_grad_()
    logs = torch.log_softmax(leaf[1:] / temperature, -1)
    entropy = -(logs.exp() * logs.masked_fill(logs == -torch.inf, 0)).sum(-1)
    found = [logs.gather(1, targets[:, None])[:, 0], entropy]
    (gradient,) = torch.autograd.grad(found, leaf, list(weights))
    return [*(part.detach() for part in found), gradient]


def off(found: Any, wanted: Any) -> float:
    """Return the error in parts of the norm; of what is not a number, whether both are not."""
    same = (found == wanted) | (found.isnan() & wanted.isnan())
    error = torch.where(same, 0, found - wanted).norm() / max(float(wanted.nan_to_num(0, 0, 0).norm()), 1e-3)
    return float(error)


def main(rank: int, size: int, store: str, seed: str) -> None:
    """Run all cases on this rank."""
    from overlay.patches._packed_loss import triton_rows

    # Several tiles a row, for the price of few.
    triton_rows.TILE = 64
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size)  # type: ignore[attr-defined]
    errors: dict[str, dict[str, dict[str, float]]] = {}
    calls = {"blocks": 0, "triton": 0}
    for dtype in (torch.float32, torch.bfloat16):
        for kind in KINDS:
            draw = random.Random(f"{seed}/{kind}/{dtype}")
            made = torch.Generator().manual_seed(draw.randrange(2**31))
            width = size * draw.choice([7, 64, 65, 130, 193])
            temperature = draw.choice([1.0, 0.8, 0.37, 1.7])
            logits = drawn(kind, width, made).to(dtype)
            targets = torch.randint(width, (ROWS - 1,), generator=made)
            targets[::2] = logits[1:].float().nan_to_num(0).argmax(-1)[::2]
            weights = torch.randn(2, ROWS - 1, generator=made, dtype=torch.float64).to(dtype).double()
            wanted = expected(logits, targets, weights, temperature)
            mine = slice(rank * width // size, (rank + 1) * width // size)
            wanted[2] = wanted[2][:, mine]
            for kernel in ("blocks", "triton"):
                os.environ["OVERLAY_LOSS_KERNEL"] = kernel
                part = logits[:, mine].contiguous()
                calls[kernel] += row_kernels.rows_of(part) is triton_rows
                rows = Rows([(1, ROWS)], group=dist.group.WORLD, temperature=temperature, with_entropy=True)
                found = results(part, targets, weights, rows)
                names = ("log-probs", "entropy", "gradient")
                row = {name: off(*pair) for name, *pair in zip(names, found, wanted, strict=True)}
                errors.setdefault(f"{dtype}, {kind}", {})[kernel] = row
    print(json.dumps({"errors": errors, "calls": calls}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
