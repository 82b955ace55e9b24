"""slime's layer on all tokens, on ranks: what each of them gets for its share of the tokens."""

from __future__ import annotations

import functools
import importlib
import os
import random
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu

from overlay.compat.cuda_on_cpu import cuda_on_cpu
from overlay.compat.slime_on_cpu import import_slime
from overlay.compat.slime_on_cpu.hf_attention import MODULE, gradient, mixing

if TYPE_CHECKING:
    from collections.abc import Callable

SEED = os.environ["OVERLAY_TEST_SEED"]
#: Tensor and context parallel size, and whether tokens are split over the tensor parallel ranks.
LAYOUTS = ((1, 2, False), (1, 4, False), (2, 1, True), (2, 2, True), (2, 2, False), (4, 1, True))


def cases(_world: int) -> list[tuple[str, dict[str, int], Callable[[], Any]]]:
    """Return the cases on four ranks."""
    draw = random.Random(f"{SEED}/hf_attention")
    found: list[tuple[str, dict[str, int], Callable[[], Any]]] = []
    for tensor, context, parallel in LAYOUTS:
        lengths = [16 * draw.randint(1, 3) for _ in range(draw.randint(1, 3))]
        call = functools.partial(_layer, lengths, draw.randrange(2**31), parallel)
        name = f"mixing, tp{tensor}, cp{context}{', sequence parallel' if parallel else ''}"
        found.append((name, {"tensor": tensor, "context": context}, call))
    found.append(("bfloat16, cp4", {"context": 4}, functools.partial(_bfloat16, draw.randrange(2**31))))
    return found


def _scatter(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return what takes a rank of the group, which PyTorch's own gather passes where there is no NCCL."""

    def scatter(tensor: Any, parts: Any, src: int, group: Any) -> Any:
        return original(tensor, parts, dist.get_global_rank(group, src), group)

    return scatter


def warm() -> None:
    """Let slime 0.2.0 to 0.2.3 gather over some of the ranks under gloo."""
    vars(dist)["scatter"] = _scatter(dist.scatter)


def _layer(lengths: list[int], seed: int, parallel: bool) -> dict[str, Any]:
    with cuda_on_cpu():
        import_slime("cp_utils")
        return gradient(mixing(seed), lengths, seed, sequence_parallel=parallel)


def _bfloat16(seed: int) -> dict[str, Any]:
    """Sum what ranks give back in the type that models are trained in: small whole numbers."""
    import_slime("cp_utils")
    gather = getattr(importlib.import_module(MODULE), "_AllGatherForDuplicatedComputation", None)
    if gather is None:
        return {"output": 0.0, "gradient": 0.0}  # before 0.2.4 the sum is PyTorch's
    group = mpu.get_context_parallel_group()
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    draw = torch.Generator().manual_seed(seed)
    given = torch.randint(-8, 8, (size, size, 3, 2), generator=draw).to(torch.bfloat16)
    mine = torch.zeros(3, 2, dtype=torch.bfloat16, requires_grad=True)
    # As views of one tensor, transposed: no gradient is contiguous.
    whole = torch.stack(gather.apply(mine, group)).transpose(1, 2)
    (grad,) = torch.autograd.grad(whole, mine, given[rank].transpose(1, 2))
    wanted = given[:, rank].float().sum(0)
    off = (grad.float() - wanted).abs().max().item() if grad.shape == wanted.shape else float("inf")
    return {"output": 0.0, "gradient": off if grad.dtype == torch.bfloat16 else float("inf")}
