"""How others cut a step, as places to start from: no plan that starts there takes longer than theirs.

What they do takes the square of the number of sequences or more, so a meter says how far to go with it.

* Megatron with static context parallelism: replicas, each with micro-batches of its own.
* verl 0.8.0: micro-batches by Karmarkar-Karp, one size in each.
* Megatron's development branch: a rule, written here from what it does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapreplace

from overlay.patches._dynamic_cp.cost import Meter, sequence_costs
from overlay.patches._dynamic_cp.plan import allowed_sizes
from overlay.patches._dynamic_cp.windows import Subgroup, smallest_size, subgroup
from overlay.patches._partition import karmarkar_karp

Step = list[list[Subgroup]]

#: Megatron's rule lets attention exceed that of the longest sequence in full ranks by one in so many.
SLACK = 20
#: Operations for each sequence of Karmarkar-Karp, and of the rule in each micro-batch.
DIFFERENCING, RULE = 4, 4


def replicated(lengths: Sequence[int], ranks: int, room: int, budget: int, meter: Meter) -> Iterator[Step]:
    """Yield the step of static context parallelism for each size with which no rank is without work.

    Arguments are as in `windows`; what the meter does not allow is left out.
    """
    for size in allowed_sizes(ranks):
        if size * room >= max(lengths):
            parts = replicas(lengths, ranks // size, size * budget, meter)
            if parts is not None and all(len(replica) == len(parts[0]) for replica in parts):
                yield [[subgroup(size, part, lengths) for part in turn] for turn in zip(*parts, strict=True)]


def by_number(lengths: Sequence[int], ranks: int, room: int, budget: int) -> Step | None:
    """Return what verl makes of a micro-batch: one size, and as many sequences for each subgroup, in order.

    `None` if that leaves ranks without work, or exceeds what they hold.
    """
    size = smallest_size(max(lengths), room)
    each = -(-len(lengths) * size // ranks)
    if len(lengths) < ranks or each * (ranks // size - 1) >= len(lengths):
        return None
    parts = [range(start, min(start + each, len(lengths))) for start in range(0, len(lengths), each)]
    members = [subgroup(size, [*part], lengths) for part in parts]
    return [members] if all(member.tokens <= size * budget for member in members) else None


def balanced(lengths: Sequence[int], indices: Sequence[int], parts: int) -> list[list[int]]:
    """Return the indices in parts of about equal work by verl's estimate, most work first."""
    work = [24576 * lengths[index] + lengths[index] ** 2 for index in indices]
    found = karmarkar_karp(work, parts, equal_size=False)
    found.sort(key=lambda part: -sum([work[place] for place in part]))
    return [[indices[place] for place in part] for part in found]


def micro_batches(
    lengths: Sequence[int], indices: Sequence[int], budget: int, meter: Meter
) -> list[list[int]] | None:
    """Return the micro-batches of verl, in as few as its Karmarkar-Karp needs to hold the budget.

    `None` if the meter does not allow to find them.
    """
    count = max(1, -(-sum([lengths[index] for index in indices]) // budget))
    while meter.take(DIFFERENCING * len(indices)):
        parts = balanced(lengths, indices, count)
        if count >= len(indices) or all(sum([lengths[i] for i in part]) <= budget for part in parts):
            return parts
        count += 1
    return None


def replicas(lengths: Sequence[int], count: int, budget: int, meter: Meter) -> list[list[list[int]]] | None:
    """Return the micro-batches of each of `count` replicas between which the sequences are balanced.

    `None` if the meter does not allow to find them.
    """
    if not meter.take(DIFFERENCING * len(lengths)):
        return None
    found: list[list[list[int]]] = []
    for replica in balanced(lengths, range(len(lengths)), count):
        parts = micro_batches(lengths, replica, budget, meter) if replica else []
        if parts is None:
            return None
        found.append(parts)
    return found


def one_size_each(lengths: Sequence[int], ranks: int, room: int, budget: int, meter: Meter) -> Step | None:
    """Return verl's micro-batches with whichever one size is best in each; `None` if none will do."""
    parts = micro_batches(lengths, range(len(lengths)), ranks * budget, meter)
    if parts is None or not meter.take(len(lengths) * len(allowed_sizes(ranks))):
        return None
    step: Step = []
    for part in parts:
        longest = max([lengths[index] for index in part])
        found = [
            _dealt_out(lengths, part, ranks // size, size)
            for size in allowed_sizes(ranks)
            if longest <= size * room and ranks // size <= len(part)
        ]
        fitting = [
            members
            for members in found
            if all(one.indices and one.tokens <= one.size * budget for one in members)
        ]
        if not fitting:
            return None
        step.append(min(fitting, key=lambda members: max(one.load for one in members)))
    return step


def _dealt_out(lengths: Sequence[int], part: Sequence[int], count: int, size: int) -> list[Subgroup]:
    """Return subgroups of one size; the longest sequence came first, each to who had least to do."""
    falling = sorted(part, key=lambda index: (-lengths[index], index))
    heap, dealt = [(0, place) for place in range(count)], [list[int]() for _ in range(count)]
    for index, load in zip(falling, sequence_costs([lengths[index] for index in falling], size), strict=True):
        least, place = heap[0]
        dealt[place].append(index)
        heapreplace(heap, (least + load, place))
    return [subgroup(size, indices, lengths) for indices in dealt]


def megatron_rule(lengths: Sequence[int], ranks: int, room: int, meter: Meter) -> Step | None:
    """Return the step of the rule of Megatron's development branch; `None` if the meter does not allow it.

    The longest sequence opens a micro-batch in the fewest ranks that hold it. Every other one, longest first,
    joins a subgroup or opens one, at whichever size leaves the most attention of any rank least, as long as
    that stays below that of the longest sequence in full ranks, and each rank within its tokens. What fits
    nowhere is left for the next micro-batch. Ranks without work join the smallest subgroups.
    """
    left = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    step = []
    while left:
        # Each that is left looks at every subgroup, in each of the sizes that it may have.
        if not meter.take(RULE * len(left)):
            return None
        members, left = _ruled(lengths, left, ranks, room)
        members.sort(key=lambda member: -member.size)
        step.append(members)
    return step


def _ruled(
    lengths: Sequence[int], candidates: list[int], ranks: int, room: int
) -> tuple[list[Subgroup], list[int]]:
    """Return the subgroups of a micro-batch by Megatron's rule, and what is left of the candidates."""
    longest = lengths[candidates[0]]
    limit = longest * room + longest * room // SLACK
    # Here the load of a subgroup is that rule's: the square of each length, over its ranks.
    members = [Subgroup(smallest_size(longest, room), [candidates[0]], longest, 0)]
    members[0].load = longest * longest // members[0].size
    left = []
    for index in candidates[1:]:
        length = lengths[index]
        best = _best_place(members, length, ranks, room, limit)
        if best is None:
            left.append(index)
            continue
        size, member = best
        if member is None:
            member = Subgroup(size, [], 0, 0)
            members.append(member)
        member.indices.append(index)
        member.tokens += length
        member.load += length * length // size
    free = ranks - sum(member.size for member in members)
    while free:
        smallest = min(members, key=lambda member: member.size)
        free -= smallest.size
        smallest.size *= 2
    return [subgroup(member.size, member.indices, lengths) for member in members], left


def _best_place(
    members: Sequence[Subgroup], length: int, ranks: int, room: int, limit: int
) -> tuple[int, Subgroup | None] | None:
    """Return the size and the subgroup to which Megatron's rule sends a sequence, `None` for a new one."""
    most = max(member.load for member in members)
    free = ranks - sum(member.size for member in members)
    best: tuple[int, Subgroup | None] | None = None
    least = limit + 1
    size = smallest_size(length, room)
    while size <= ranks:
        added = length * length // size
        for member in members:
            after = max(most, member.load + added)
            if member.size == size and member.tokens + length <= size * room and after < least:
                best, least = (size, member), after
        if free >= size and max(most, added) < least:
            best, least = (size, None), max(most, added)
        size *= 2
    return best
