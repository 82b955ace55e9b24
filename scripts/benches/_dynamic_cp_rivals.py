"""How others cut a step under context parallelism: what `plans` compares with.

Each returns the micro-batches of a step as plans whose indices are places in `lengths`. All of them get the
same token budget for each rank. Where a rule may leave ranks without work, an entry has no indices.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from overlay.patches._dynamic_cp.cost import Meter
from overlay.patches._dynamic_cp.other_planners import megatron_rule, micro_batches, replicas
from overlay.patches._dynamic_cp.plan import plan_uniform
from overlay.patches._dynamic_cp.windows import smallest_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from overlay.patches._dynamic_cp.plan import Plan

    Step = list[Plan]


def fixed(lengths: Sequence[int], ranks: int, room: int, size: int = 4) -> Step:
    """Return the step of static context parallelism: W / C balanced replicas, each with its micro-batches."""
    parts = replicas(lengths, ranks // size, size * room, Meter()) or []
    return [
        tuple(
            (place * size, size, tuple(part[turn]) if turn < len(part) else ())
            for place, part in enumerate(parts)
        )
        for turn in range(max(map(len, parts)))
    ]


def verl(lengths: Sequence[int], ranks: int, room: int) -> Step:
    """Return verl 0.8.0's step: C for the longest of a micro-batch, as many sequences for each subgroup.

    Kinder than it is: of fewer sequences than ranks each rank of verl 0.8.0 computes all, without context
    parallelism. Here all ranks share them.
    """
    step: Step = []
    for part in micro_batches(lengths, range(len(lengths)), ranks * room, Meter()) or []:
        size = smallest_size(max(lengths[index] for index in part), room) if len(part) >= ranks else ranks
        each = -(-len(part) // (ranks // size))
        step.append(
            tuple(
                (place * size, size, tuple(part[place * each : (place + 1) * each]))
                for place in range(ranks // size)
            )
        )
    return step


def uniform(lengths: Sequence[int], ranks: int, room: int) -> Step:
    """Return the step of `OVERLAY_DCP=uniform`: verl's micro-batches, one C in each, balanced by tokens."""
    step: Step = []
    for part in micro_batches(lengths, range(len(lengths)), ranks * room, Meter()) or []:
        plan = plan_uniform([lengths[index] for index in part], ranks, room, room)
        step.append(
            tuple((start, size, tuple(part[place] for place in places)) for start, size, places in plan)
        )
    return step


def megatron(lengths: Sequence[int], ranks: int, room: int) -> Step:
    """Return the step of the rule of Megatron's development branch."""
    step: Step = []
    for members in megatron_rule(lengths, ranks, room, Meter()) or []:
        starts = itertools.accumulate([member.size for member in members], initial=0)
        step.append(
            tuple(
                (start, member.size, tuple(member.indices))
                for start, member in zip(starts, members, strict=False)
            )
        )
    return step
