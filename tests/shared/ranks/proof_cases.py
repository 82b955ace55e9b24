"""Proof: a whole transformer under dynamic context parallelism, against one process (`ranks.engine_main`).

Grouped queries, rotary positions, either norm, with recomputation and without; every context parallel size
from one rank to all, and plans with several sizes in one micro-batch; verl's losses; whole outputs; and three
steps of Megatron's optimizer.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
from collections.abc import Callable, Sequence
from typing import Any

from breadth_cases import CAP, batch_of, steps
from dynamic_cp_cases import Case
from planned import planned

from overlay.compat import cpu_engine
from overlay.compat.cpu_policy_step import run_ppo
from overlay.compat.cpu_steps import run_outputs, run_sft
from overlay.patches._dynamic_cp.plan import Plan, allowed_sizes, check_plan

#: Of Megatron's optimizer, not distributed.
plain_steps = functools.partial(steps, distributed=False)
#: Grouped queries and rotary positions in all of them.
SHAPES = {
    f"{norm}, {recompute or 'nothing'} recomputed": cpu_engine.Shape(
        groups=2, rope=True, norm=norm, recompute=recompute
    )
    for norm, recompute in itertools.product(("RMSNorm", "LayerNorm"), ("", "full", "core"))
}


def cases(world: int) -> list[Case]:
    """Return the cases for a world of this size."""
    draw = random.Random(f"{os.environ['OVERLAY_TEST_SEED']}/proof/{world}")
    shapes = itertools.cycle(SHAPES.items())
    found: list[tuple[str, Callable[[], Any]]] = []
    for size in allowed_sizes(world):
        name, shape = next(shapes)
        batch = batch_of(draw, world, size)
        found.append((f"sft, C {size}, {name}", functools.partial(run_sft, **batch, shape=shape)))
        found.append((f"outputs, C {size}, {name}", functools.partial(run_outputs, **batch, shape=shape)))
    for index, (name, shape) in enumerate(SHAPES.items()):
        batch = batch_of(draw, world, draw.choice(allowed_sizes(world // 2)), micro_batches=2)
        found.append((f"sft, mixed {index}, {name}", planned(drawn_plan, run_sft, **batch, shape=shape)))
        if index < 2:
            found.append(
                (f"outputs, mixed {index}, {name}", planned(drawn_plan, run_outputs, **batch, shape=shape))
            )
    # Long sequences to the first half, short ones to a rank each: the plan that verl 0.8.0 left for later.
    name, shape = next(shapes)
    halves: dict[str, Any] = {"lengths": [CAP * world // 2, 5, 3, CAP, *[4] * world], "cap": CAP}
    plan = _halves(world, len(halves["lengths"]))
    found.append((f"sft, halves, {name}", planned(lambda *_: plan, run_sft, **halves, shape=shape)))
    # The longest sequence of a policy's batch takes all ranks; its second micro-batch may be mixed.
    for mode, (name, shape) in zip(("token-mean", "seq-mean-token-mean"), SHAPES.items(), strict=False):
        found.append((f"ppo, {mode}, {name}", functools.partial(run_ppo, draw, mode, shape=shape)))
        terms: dict[str, Any] = {"entropy": 0.3, "kl": 0.7, "shape": shape}
        found.append((f"ppo, mixed, {mode}, {name}", planned(drawn_plan, run_ppo, draw, mode, **terms)))
    for name, shape in list(SHAPES.items())[:2]:
        found.append((f"steps, uniform, {name}", functools.partial(plain_steps, draw, world, shape)))
        found.append((f"steps, mixed, {name}", planned(drawn_plan, plain_steps, draw, world, shape)))
    return [(name, 1, 1, case) for name, case in found]


def _halves(world: int, count: int) -> Plan:
    """Return the plan that gives the first of `count` sequences to one half, and the others to one rank."""
    half = world // 2
    alone = tuple((half + index, 1, tuple(range(1 + index, count, half))) for index in range(half))
    return ((0, half, (0,)), *alone)


def drawn_plan(lengths: Sequence[int], ranks: int, cap: int) -> Plan:
    """Draw a plan of any sizes, the same on all ranks. Sequences go to any subgroup that can hold them."""
    draw = random.Random(f"{os.environ['OVERLAY_TEST_SEED']}/{lengths}/{ranks}/{cap}")
    longest_first = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    cut = max(lengths) <= cap * ranks // 2
    while True:
        blocks = _blocks(draw, 0, ranks, len(lengths), cut=cut)
        # The longest sequences one to each block, the largest first, so that no block stays empty.
        order = sorted(blocks, key=lambda block: -block[1])
        members: dict[tuple[int, int], list[int]] = {block: [] for block in blocks}
        for index, block in zip(longest_first, order, strict=False):
            members[block].append(index)
        for index in longest_first[len(order) :]:
            fitting = [block for block in blocks if block[1] * cap >= lengths[index]]
            members[draw.choice(fitting or order[:1])].append(index)
        plan = tuple((start, size, tuple(sorted(members[start, size]))) for start, size in blocks)
        if all(lengths[index] <= size * cap for _, size, part in plan for index in part):
            check_plan(plan, len(lengths), ranks)
            return plan


def _blocks(
    draw: random.Random, start: int, size: int, most: int, *, cut: bool = False
) -> list[tuple[int, int]]:
    """Cut a run of ranks in halves, and those again, until a coin or the number of sequences says no."""
    if size == 1 or most < 2 or (not cut and draw.random() < 0.3):
        return [(start, size)]
    half = size // 2
    left = _blocks(draw, start, half, most // 2)
    return left + _blocks(draw, start + half, half, most - len(left))
