"""How others cut a step under context parallelism: what `plans` compares with.

Each returns the micro-batches of a step as plans whose indices are places in `lengths`. All of them get the
same token budget for each rank. Where a rule may leave ranks without work, an entry has no indices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.patches._dynamic_cp.mixed import smallest_size
from overlay.patches._dynamic_cp.plan import plan_uniform
from overlay.patches._partition import karmarkar_karp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from overlay.patches._dynamic_cp.plan import Plan

    Step = list[Plan]


def balanced(lengths: Sequence[int], indices: Sequence[int], parts: int) -> list[list[int]]:
    """Return the indices in parts of about equal work by verl's estimate, most work first."""
    work = [24576 * lengths[index] + lengths[index] ** 2 for index in indices]
    found = karmarkar_karp(work, parts, equal_size=False)
    found.sort(key=lambda part: -sum(work[place] for place in part))
    return [[indices[place] for place in part] for part in found]


def micro_batches(lengths: Sequence[int], indices: Sequence[int], budget: int) -> list[list[int]]:
    """Return the micro-batches of verl, in as few as its Karmarkar-Karp needs to hold the budget."""
    for count in range(max(1, -(-sum(lengths[index] for index in indices) // budget)), len(indices)):
        parts = balanced(lengths, indices, count)
        if all(sum(lengths[index] for index in part) <= budget for part in parts):
            return parts
    return [[index] for index in indices]


def fixed(lengths: Sequence[int], ranks: int, room: int, size: int = 4) -> Step:
    """Return the step of static context parallelism: W / C balanced replicas, each with its micro-batches."""
    replicas = balanced(lengths, range(len(lengths)), ranks // size)
    parts = [micro_batches(lengths, replica, size * room) for replica in replicas]
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
    for part in micro_batches(lengths, range(len(lengths)), ranks * room):
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
    for part in micro_batches(lengths, range(len(lengths)), ranks * room):
        plan = plan_uniform([lengths[index] for index in part], ranks, room, room)
        step.append(
            tuple((start, size, tuple(part[place] for place in places)) for start, size, places in plan)
        )
    return step
