"""Ranks that share one device, through gloo: a process for each, on the GPU or on the CPU.

    python one_device_main.py RANK SIZE STORE SEED DEVICE

Prints, as JSON, the error of each case against one process in float64, or `null` for one that has none and
went well.
On a GPU values come there as a trainer's do: from pinned memory, asynchronously, on a stream of their own.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import torch
import torch.distributed as dist

from overlay.patches._packed_loss.row_blocks import Rows
from overlay.patches._packed_loss.vocab_parallel import make_log_prob_entropy

#: Of which the first is no response.
ROWS = 9
#: Of logits.
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


def arrived(values: Any, device: str) -> Any:
    """Return values on the device, copied on a stream of their own."""
    if device == "cpu":
        return values
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        there = values.pin_memory().to(device, non_blocking=True)
    torch.cuda.current_stream().wait_stream(stream)
    there.record_stream(torch.cuda.current_stream())
    return there


def whitening(rank: int, size: int, made: torch.Generator, device: str) -> float:
    """Whiten advantages around 3,000, of which ranks have unequal parts and one has none that counts."""
    from overlay.patches._whitening import whitened

    whole = torch.randn(97, generator=made) + 3000
    mask = (torch.rand(97, generator=made) < 0.7).float()
    cuts = [0, 5, *(97 - size + 2 + part for part in range(size - 1))]
    mask[:5] = 0
    mask[-1] = mask[10] = 1
    mine = slice(cuts[rank], cuts[rank + 1] if rank + 1 < size else 97)
    values, counted = arrived(whole[mine], device), arrived(mask[mine], device)
    found = whitened(values, counted, dist.all_reduce, shift_mean=True, epsilon=1e-8)
    exact = whole.double()
    kept = exact[mask.bool()]
    wanted = (exact - kept.mean()) / (kept.var() + 1e-8) ** 0.5
    return off(found.double().cpu(), wanted[mine])


def dynamic_cp(rank: int, made: torch.Generator, device: str) -> float:
    """Put the outputs of two subgroups together, as a loss of the whole micro-batch gets them."""
    from megatron.core import parallel_state as mpu

    from overlay.patches._dynamic_cp import agreement
    from overlay.patches._dynamic_cp.whole import collect

    mpu.initialize_model_parallel(create_gloo_process_groups=False)
    group = mpu.get_data_parallel_group()
    agreement.agree(group)
    lengths = [5, 9, 4, 1]
    rows = [torch.randn(length, generator=made) for length in lengths]
    plan: Any = ((0, 1, (0, 2)), (1, 1, (1, 3)))
    mine = plan[rank][2]
    given = torch.nested.nested_tensor([arrived(rows[at], device) for at in mine], layout=torch.jagged)
    found = collect({"log_probs": given}, lengths, plan)["log_probs"]
    return off(found.values().double().cpu(), torch.cat(rows).double())


def loss(kind: str, rank: int, size: int, draw: random.Random, made: torch.Generator, device: str) -> float:
    """Compute the loss of slices of a vocabulary, forward and backward."""
    width, temperature = size * draw.choice([7, 193, 4097]), draw.choice([0.7, 1.7])
    logits = drawn(kind, width, made)
    targets = torch.randint(width, (ROWS - 1,), generator=made)
    targets[::2] = logits[1:].nan_to_num(0).argmax(-1)[::2]
    weights = torch.randn(2, ROWS - 1, generator=made, dtype=torch.float64)
    wanted = expected(logits, targets, weights, temperature)
    mine = slice(rank * width // size, (rank + 1) * width // size)
    wanted[2] = wanted[2][:, mine]
    rows = Rows([(1, ROWS)], group=dist.group.WORLD, temperature=temperature, with_entropy=True)
    part = arrived(logits[:, mine].contiguous(), device)
    found = results(part, targets, arrived(weights, device), rows)
    return max(off(a.cpu(), b) for a, b in zip(found, wanted, strict=True))


def agreement() -> None:
    """Compare what ranks have: all the same, or an error on each."""
    import overlay

    overlay.agree()


def main(rank: int, size: int, store: str, seed: str, device: str) -> None:
    """Run all cases on this rank."""
    import overlay

    overlay.enable("megatron.agreement")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size)  # type: ignore[attr-defined]
    draw = random.Random(seed)
    made = torch.Generator().manual_seed(draw.randrange(2**31))
    found: dict[str, float | None] = {"whitening": whitening(rank, size, made, device)}
    found["dynamic CP"] = dynamic_cp(rank, made, device)
    for kind in KINDS:
        found[f"loss, {kind}"] = loss(kind, rank, size, draw, made, device)
    agreement()
    found["agreement"] = None
    print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:6])
