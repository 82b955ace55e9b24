"""slime's `compute_advantages_and_returns`, or its fork's: what a rank makes of its share of a batch."""

from __future__ import annotations

import itertools
import random
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu

from overlay.compat.slime_on_cpu import import_slime

#: Tokens and response tokens of the samples of each of two data parallel ranks: with few enough at the end of
#: one, some slices of the other's partner have none.
BATCHES: dict[str, tuple[tuple[tuple[int, int], ...], ...]] = {
    "plain": (((16, 9), (24, 15)), ((20, 12), (12, 7))),
    "late": (((64, 3),), ((20, 12), (12, 7))),
    "alone": (((64, 1),), ((64, 2),)),
}


#: Of advantages of about one, float32's.
TOLERANCE = 1e-5

ARGUMENTS = Namespace(
    advantage_estimator="grpo", allgather_cp=False, custom_advantage_function_path=None, kl_coef=0.0,
    normalize_advantages=True, qkv_format="thd", use_opd=False, use_rollout_logprobs=False,
)  # fmt: skip


def whiten(shares: Sequence[Sequence[tuple[int, int]]], kind: str, seed: str) -> dict[str, Any]:
    """Let slime compute advantages, and compare this rank's with those of one process in float64.

    `shares`: tokens and response tokens of the samples of each data parallel rank. `kind`: `rewards`; `large
    rewards`, of 3,000 and some; `masked`, with no token that counts; or `hook`, where a user's function makes
    the advantages. `seed`: of what is drawn, the same on all ranks.
    """
    loss, context = import_slime("loss", "cp_utils")
    draw = torch.Generator().manual_seed(random.Random(f"{seed}/{shares}/{kind}").randrange(2**31))
    offset = 3000 if kind == "large rewards" else 0
    rewards = [(torch.randn(len(share), generator=draw) + offset).tolist() for share in shares]
    if kind == "hook":  # slime whitens them in float32, where close ones lose their deviation
        rewards = [[(-1) ** at * (at + 1 + abs(one) % 1) for at, one in enumerate(own)] for own in rewards]
    masks = [[(torch.rand(count, generator=draw) < 0.8).float() for _, count in share] for share in shares]
    for mask in itertools.chain.from_iterable(masks):
        mask[-1] = 1
        if kind == "masked":
            mask.zero_()

    mine = mpu.get_data_parallel_rank()
    totals, counts = zip(*shares[mine], strict=True)

    def slices(values: Sequence[float]) -> list[Any]:
        """Return this rank's slices of samples that have one value each."""
        full = [torch.full((count,), value) for value, count in zip(values, counts, strict=True)]
        return [context.slice_log_prob_with_cp(*one) for one in zip(full, totals, counts, strict=True)]

    data: dict[str, Any] = {
        "log_probs": slices([0.0] * len(counts)),
        "rewards": rewards[mine],
        "response_lengths": list(counts),
        "total_lengths": list(totals),
        "loss_masks": masks[mine],
    }
    hooked = {"custom_advantage_function_path": f"{__name__}.{own_advantages.__name__}"}
    arguments = Namespace(**{**vars(ARGUMENTS), **(hooked if kind == "hook" else {})})
    loss.compute_advantages_and_returns(arguments, data)
    dist.barrier()

    counted = torch.tensor(
        [
            reward
            for share, own in zip(masks, rewards, strict=True)
            for mask, reward in zip(share, own, strict=True)
            for _ in range(int(mask.sum()))
        ],
        dtype=torch.float64,
    )
    mean, spread = counted.mean().item(), counted.var().item() if len(counted) > 1 else 0.0
    wanted = slices([(reward - mean) / (spread + 1e-8) ** 0.5 for reward in rewards[mine]])
    found = torch.cat(data["advantages"])
    if [len(one) for one in data["advantages"]] != [
        len(one) for one in wanted
    ] or found.dtype != torch.float32:
        raise RuntimeError(f"advantages of another shape or type: {data['advantages']}")
    off = (found - torch.cat(wanted)).abs().max().item() if len(found) else 0.0
    return {"error": off, "tokens": len(found), "finite": bool(found.isfinite().all())}


def own_advantages(_: Any, data: dict[str, Any]) -> None:
    """Make the advantages, as a user's function that also whitens by itself: over this rank, and over all."""
    (loss,) = import_slime("loss")
    values = [torch.full_like(*one) for one in zip(data["log_probs"], data["rewards"], strict=True)]
    flat = torch.cat(values)
    ones = torch.ones_like(flat)
    alone = mpu.get_tensor_model_parallel_group()
    everybody = mpu.get_data_parallel_group(with_context_parallel=True)
    mine = loss.distributed_masked_whiten(flat, ones, process_group=alone) if len(flat.unique()) > 1 else None
    # First the collective of all, then what raises.
    loss.distributed_masked_whiten(flat, ones, process_group=everybody)
    exact = flat.double()
    if mine is not None and ((exact - exact.mean()) / exact.std() - mine).abs().max() > 1e-3:
        raise RuntimeError(f"whitened over this rank alone, {flat} became {mine}")
    data["advantages"] = data["returns"] = values


def wrong(seed: str) -> str:
    """Return what is wrong with the advantages of one rank, empty if nothing is."""
    for batch in BATCHES["plain"]:
        for kind in ("rewards", "large rewards"):
            found = whiten([batch], kind, seed)
            if not (found["finite"] and found["error"] <= TOLERANCE):
                return f"{kind} of {batch}: {found}"
    return ""


def alike(seed: str) -> str:
    """Return which advantages of one rank are others than upstream's, which is right about small rewards."""
    from overlay.testing import without

    (loss,) = import_slime("loss")
    draw = random.Random(seed)
    batches = [[draw.randint(1, 5) for _ in range(count)] for count in (2, 3, 12)]
    masks = [[[draw.randint(0, 1) for _ in range(one - 1)] + [1] for one in batch] for batch in batches]
    # Far enough from each other: of equal rewards the deviation is what float32 rounds.
    rewards = [[at / len(batch) + 0.2 * draw.random() for at in range(len(batch))] for batch in batches]

    def advantages(lengths: list[int], masks: list[list[int]], rewards: list[float]) -> Any:
        data: dict[str, Any] = {
            "log_probs": [torch.zeros(length) for length in lengths],
            "rewards": list(rewards),
            "response_lengths": list(lengths),
            "total_lengths": [length + 2 for length in lengths],
            "loss_masks": [torch.tensor(mask) for mask in masks],
        }
        loss.compute_advantages_and_returns(ARGUMENTS, data)
        return torch.cat(data["advantages"])

    for ours, theirs in zip(*without(lambda: [*map(advantages, batches, masks, rewards)]), strict=True):
        if not torch.allclose(ours, theirs, atol=1e-4):
            return f"advantages are {ours}, and without the patch {theirs}"
    return ""
