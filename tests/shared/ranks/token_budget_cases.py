"""Ranks that divide batches with verl's `rearrange_micro_batches`, without an engine (`ranks.megatron_main`).

What a rank has is drawn from `OVERLAY_TEST_SEED`, for all ranks on each of them, so that every release gets
the same. Ranks share a `dp_group` of all, or of two.
"""

from __future__ import annotations

import functools
import inspect
import os
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from tensordict import TensorDict
from verl.utils import seqlen_balancing

import overlay

CAP = 64
#: Seconds after which a rank gives up waiting for the others, where they are expected to be missing.
PATIENCE = 15

#: Whether this release lacks what the patch gives it.
IN_PLACE = {patch.patch: patch.state for patch in overlay.status().patches}[
    "verl.strict-token-budget"
] == "applied"

#: Drawn cases, by what they divide with.
FRESH: dict[str, dict[str, Any]] = {
    "fresh": {},
    "fresh multiple of 3": {"num_batches_divided_by": 3},
    "fresh at least 7": {"min_num_micro_batch": 7},
    "fresh without order": {"use_dynamic_bsz_balance": False},
    "fresh pairs of samples": {"force_group_size": 2},
    "fresh on their own": {"same_micro_num_in_dp": False},
}
#: What each rank has, the last entry being that of all further ranks.
FIXED: dict[str, tuple[list[list[int]], dict[str, Any]]] = {
    "the issue": ([[33] * 8, [1] * 8], {}),
    "one sample each": ([[CAP], [1]], {}),
    "one sample on one rank": ([[CAP], [9, 5, 3]], {}),
    "one empty sample": ([[0], [CAP]], {}),
    "too long on one rank": ([[CAP + 1, 3], [5, 6, 7]], {}),
    "too long on the last": ([[5, 6, 7], [8, 9], [CAP + 2]], {}),
    "no multiple": ([[CAP] * 5, [CAP] * 5], {"num_batches_divided_by": 3}),
    "too heavy together": ([[1, 1, 40, 40, 2, 2], [1, 1, 1, 1]], {"force_group_size": 2}),
    "indivisible": ([[4, 4, 4], [1, 1]], {"force_group_size": 2}),
}
#: With these upstream fails on one rank only, and the others wait.
ALONE = ("too long on one rank", "too long on the last", "indivisible")


def batches(name: str, number: int, world: int) -> list[list[int]]:
    """Return the tokens of each sample on each rank."""
    if name in FIXED:
        ranks = FIXED[name][0]
        return [ranks[min(rank, len(ranks) - 1)] for rank in range(world)]
    draw = random.Random(f"{os.environ['OVERLAY_TEST_SEED']}/{name}/{number}")
    # As many for each rank, as verl deals them out.
    samples = 2 * draw.randint(5, 9)
    most = CAP // 2 if "pairs" in name else draw.choice((CAP // 2, CAP // 2, CAP))
    return [[draw.randint(0, most) for _ in range(samples)] for _ in range(world)]


def divide(
    name: str, number: int, group: Any, members: list[int], *, without_group: bool = False
) -> dict[str, Any]:
    """Divide this rank's batch, and tell how, and in how many collectives."""
    arguments = FRESH[name] if name in FRESH else FIXED[name][1]
    known = inspect.signature(seqlen_balancing.rearrange_micro_batches).parameters
    if not known.keys() >= arguments.keys():
        return {"skipped": f"no {sorted(arguments)}"}
    lengths = batches(name, number, dist.get_world_size())[dist.get_rank()]
    rows = [torch.full((length,), index) for index, length in enumerate(lengths)]
    ids = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    batch = TensorDict({"input_ids": ids}, batch_size=[len(lengths)])
    found: dict[str, Any] = {"lengths": lengths, "arguments": arguments, "members": members}
    calls: list[Any] = []
    all_reduce = dist.all_reduce

    @functools.wraps(all_reduce)
    def counted(*args: Any, **options: Any) -> Any:
        calls.append(options.get("group"))
        return all_reduce(*args, **options)

    dist.all_reduce = counted
    try:
        _, indices = seqlen_balancing.rearrange_micro_batches(
            batch, CAP, dp_group=None if without_group else group, **arguments
        )
        found["indices"] = [[int(sample) for sample in samples] for samples in indices]
    except (AssertionError, ValueError, RuntimeError) as error:
        found |= {"error": [kind.__name__ for kind in type(error).__mro__], "message": str(error)}
    finally:
        dist.all_reduce = all_reduce
    return {**found, "collectives": len(calls)}


def in_step(found: dict[str, Any], group: Any) -> dict[str, Any]:
    """Add how many ranks meet in the next collective of the group."""
    ones = torch.ones(1)
    dist.all_reduce(ones, group=group)
    return {**found, "in_step": int(ones)}


def half(name: str, number: int) -> dict[str, Any]:
    """Divide in a job in which only the first rank has the patch."""
    if dist.get_rank():
        overlay.disable()
    group = dist.new_group(timeout=timedelta(seconds=PATIENCE))
    return in_step(divide(name, number, group, list(range(dist.get_world_size()))), group)


def cases(world: int) -> list[tuple[str, dict[str, int], Callable[[], Any]]]:
    """Return the cases in order. The last one takes overlay off."""
    # From 0.9 on verl takes a machine without a GPU for one with CUDA.
    seqlen_balancing.get_device_name = lambda: "cpu"
    everyone = list(range(world))
    pairs = [everyone[start : start + 2] for start in range(0, world, 2)]
    made = [(dist.new_group(members), members) for members in (everyone, *pairs)]
    mine = [(group, members) for group, members in made if dist.get_rank() in members]

    def case(name: str, number: int, which: int, **options: Any) -> Callable[[], Any]:
        group, members = mine[which]
        if name in ALONE and not IN_PLACE:
            return lambda: {"skipped": "the others would wait"}
        return lambda: in_step(divide(name, number, group, members, **options), group)

    listed: list[tuple[str, Callable[[], Any]]] = []
    for which, who in enumerate(("all", "two")):
        listed += [(f"{name}/{n}/{who}", case(name, n, which)) for name in FRESH for n in range(6)]
        listed += [(f"{name}/0/{who}", case(name, 0, which)) for name in FIXED]
    listed.append(("fresh/0/no group", case("fresh", 0, 0, without_group=True)))
    if IN_PLACE:
        listed += [(f"half/fresh/{n}", functools.partial(half, "fresh", n)) for n in range(6)]
        listed.append(("half/too long", functools.partial(half, "too long on one rank", 0)))
    return [(name, {}, call) for name, call in listed]
