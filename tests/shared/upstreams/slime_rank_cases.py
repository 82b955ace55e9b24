"""slime's advantages, and its layer on all tokens, on four ranks: what each gets for its share of the tokens.

The fork has the advantages by GRPO alone.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu

from overlay.compat.cuda_on_cpu import cuda_on_cpu
from overlay.compat.slime_on_cpu import import_slime
from overlay.compat.slime_on_cpu.advantages import BATCHES, whiten
from overlay.compat.slime_on_cpu.hf_attention import MODULE, gradient, mixing
from overlay.compat.slime_on_cpu.masked_gae import KINDS, layouts, look

Case = tuple[str, dict[str, int], Callable[[], Any]]

SEED = os.environ["OVERLAY_TEST_SEED"]
#: Tensor and context parallel size, and whether tokens are split over the tensor parallel ranks.
LAYOUTS = ((1, 2, False), (1, 4, False), (2, 1, True), (2, 2, True), (2, 2, False), (4, 1, True))


def cases(world: int) -> list[Case]:
    """Return the cases, those of one layout together."""
    found = [*_whitened(world)]
    if not os.environ.get("SLIME_FORK"):
        found += [*_estimated(world), *_gathered()]
    return sorted(found, key=lambda case: sorted(case[1].items()))


def _whitened(world: int) -> Iterator[Case]:
    """Yield batches of which no, two or all ranks share a sample."""
    draw = random.Random(f"{SEED}/whiten")
    fresh = tuple(
        tuple((total, draw.randint(1, total - 1)) for total in draw.choices(range(9, 60), k=3))
        for _ in range(2)
    )
    for context in (1, 2, world):
        for name, batch in {**BATCHES, "fresh": fresh}.items():
            for kind in ("rewards", "large rewards", *(["hook"] if _has_hook() else [])):
                shares = [batch[index % 2] for index in range(world // context)]
                call = functools.partial(whiten, shares, kind, SEED)
                yield f"whitened, {name}, cp{context}, {kind}", {"context": context}, call
    yield "masked, cp2", {"context": 2}, functools.partial(whiten, BATCHES["plain"], "masked", SEED)


def _has_hook() -> bool:
    (loss,) = import_slime("loss")
    return "custom_advantage_function_path" in inspect.getsource(loss)


def _estimated(world: int) -> Iterator[Case]:
    """Yield advantages by PPO, in every way in which the release lays tokens out."""
    for context in (1, 2, world):
        for layout in layouts() if context > 1 else ("zigzag",):
            for kind in KINDS if layout == "zigzag" else ("penalty",):
                call = functools.partial(look, kind, SEED, layout)
                yield f"estimated, {kind}, cp{context}, {layout}", {"context": context}, call


def _gathered() -> Iterator[Case]:
    draw = random.Random(f"{SEED}/hf_attention")
    for tensor, context, parallel in LAYOUTS:
        lengths = [16 * draw.randint(1, 3) for _ in range(draw.randint(1, 3))]
        call = functools.partial(_layer, lengths, draw.randrange(2**31), parallel)
        name = f"mixing, tp{tensor}, cp{context}{', sequence parallel' if parallel else ''}"
        yield name, {"tensor": tensor, "context": context}, call
    yield "bfloat16, cp4", {"context": 4}, functools.partial(_bfloat16, draw.randrange(2**31))


def _layer(lengths: list[int], seed: int, parallel: bool) -> dict[str, Any]:
    with cuda_on_cpu():
        return gradient(mixing(seed), lengths, seed, sequence_parallel=parallel)


def _bfloat16(seed: int) -> dict[str, Any]:
    """Sum what ranks give back in the type that models are trained in: small whole numbers."""
    import_slime("cp_utils")
    group = mpu.get_context_parallel_group()
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    draw = torch.Generator().manual_seed(seed)
    given = torch.randint(-8, 8, (size, size, 3, 2), generator=draw).to(torch.bfloat16)
    mine = torch.zeros(3, 2, dtype=torch.bfloat16, requires_grad=True)
    gathered = importlib.import_module(MODULE)._AllGatherForDuplicatedComputation.apply(mine, group)
    # As views of one tensor, transposed: no gradient is contiguous.
    whole = torch.stack(gathered).transpose(1, 2)
    (grad,) = torch.autograd.grad(whole, mine, given[rank].transpose(1, 2))
    wanted = given[:, rank].float().sum(0)
    right = grad.shape == wanted.shape and grad.dtype == torch.bfloat16
    return {"gradient": (grad.float() - wanted).abs().max().item() if right else float("inf")}
