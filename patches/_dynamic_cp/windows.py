"""Micro-batches of sequences of similar length: what there is in one takes its ranks about as long.

The longest sequences that are left open a micro-batch, one to a subgroup, each in the smallest that holds it.
Powers of two in falling order fill the ranks and start at multiples of themselves. What room is left in a
subgroup goes to the longest that fits, the subgroup with the least to do first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace
from typing import Literal

from overlay.patches._dynamic_cp.cost import sequence_cost, sequence_costs, start_cost
from overlay.patches._partition.packing import worst_fit

Fill = Literal["full", "level", "apart"]

#: How many numbers of micro-batches `equal_parts` tries, from the least that hold all tokens.
NUMBERS = 3


class Subgroup:
    """Ranks that share sequences: how many, which sequences, their tokens, and the picoseconds they take."""

    __slots__ = ("indices", "load", "size", "tokens")

    def __init__(self, size: int, indices: list[int], tokens: int, load: int) -> None:
        """Hold what is known already; see `subgroup` for a new one."""
        self.size, self.indices, self.tokens, self.load = size, indices, tokens, load


def subgroup(size: int, indices: list[int], lengths: Sequence[int]) -> Subgroup:
    """Make a subgroup of some sequences, and work out what they cost."""
    taken = [lengths[index] for index in indices]
    return Subgroup(size, indices, sum(taken), start_cost(size) + sum(sequence_costs(taken, size)))


def smallest_size(length: int, room: int) -> int:
    """Return the smallest power of two of ranks with room for so many tokens each that hold a sequence."""
    return 1 << max(0, -(-length // room) - 1).bit_length()


def windows(
    lengths: Sequence[int],
    ranks: int,
    room: int,
    budget: int,
    least: int = 1,
    fill: Fill = "full",
) -> list[list[Subgroup]]:
    """Cut a mini-batch into micro-batches, and those into subgroups in falling order of size.

    Args:
        lengths: Tokens of each sequence; the ranks together have room for any.
        ranks: W, a power of two.
        room: Tokens of one sequence that a rank holds.
        budget: Tokens of a micro-batch that a rank holds, at least `room`.
        least: No subgroup is smaller.
        fill: What room is left gets what fits (`full`, best where a subgroup holds few sequences); or, once a
            subgroup is full, no more than it takes the slowest (`level`); or only what needs so many ranks,
            besides what can be had while waiting for the slowest (`apart`, best where exchanges are dear).

    """
    rising = sorted(range(len(lengths)), key=lengths.__getitem__)
    sorted_lengths = [lengths[index] for index in rising]
    found = []
    while rising:
        members: list[Subgroup] = []
        free = ranks
        while rising and free:
            index, length = rising.pop(), sorted_lengths.pop()
            size = max(least, smallest_size(length, room))
            load = start_cost(size) + sequence_cost(length, size)
            members.append(Subgroup(size, [index], length, load))
            free -= size
        if free:
            _spread(members, free, lengths)
            members.sort(key=lambda member: -member.size)
        found.append(members)
        # Often there is no room for even the shortest.
        if not rising or all(one.size * budget - one.tokens < sorted_lengths[0] for one in members):
            continue
        if fill == "apart":
            _fill(members, rising, sorted_lengths, room, budget, least=least)
            limit = max([one.load for one in members])
            _fill(members, rising, sorted_lengths, room, budget, limit=limit)
        else:
            _fill(members, rising, sorted_lengths, room, budget, level=fill == "level")
    return found


def _spread(members: list[Subgroup], free: int, lengths: Sequence[int]) -> None:
    """Let subgroups have the ranks for which there is no sequence: those with most to do, twice as many."""
    while free:
        member = max((one for one in members if one.size <= free), key=lambda one: one.load)
        free -= member.size
        bigger = subgroup(2 * member.size, member.indices, lengths)
        members[members.index(member)] = bigger


def _fill(
    members: list[Subgroup],
    rising: list[int],
    sorted_lengths: list[int],
    room: int,
    budget: int,
    *,
    level: bool = False,
    limit: int | None = None,
    least: int | None = None,
) -> None:
    """Give the subgroups of a micro-batch what else they have room for, and take it off what is left.

    Args:
        members: The subgroups.
        rising: What is left, from the shortest to the longest.
        sorted_lengths: Their tokens.
        room: As in `windows`.
        budget: As in `windows`.
        level: Set the limit to the slowest subgroup when one is full.
        limit: No subgroup takes longer than so many picoseconds.
        least: If given, subgroups that are larger get nothing that needs fewer ranks.

    """
    heap = [(member.load, place) for place, member in enumerate(members)]
    heapify(heap)
    while heap and rising:
        load, place = heap[0]
        member = members[place]
        size = member.size
        # What is left is no longer than what opened the subgroup, for which its ranks have room.
        fitting = bisect_right(sorted_lengths, size * budget - member.tokens) - 1
        if limit is not None and fitting >= 0 and load + sequence_cost(sorted_lengths[fitting], size) > limit:
            fitting = _cheap_enough(sorted_lengths, fitting, size, limit - load)
        if fitting < 0 or (
            least is not None and size > max(least, smallest_size(sorted_lengths[fitting], room))
        ):
            heappop(heap)
            if limit is None and (level or least is not None):
                limit = max([one.load for one in members])
            continue
        length = sorted_lengths.pop(fitting)
        member.indices.append(rising.pop(fitting))
        member.tokens += length
        member.load = load = load + sequence_cost(length, size)
        heapreplace(heap, (load, place))


def _cheap_enough(sorted_lengths: Sequence[int], stop: int, size: int, most: int) -> int:
    """Return the place of the longest sequence before `stop` that takes no longer than `most`, or -1."""
    return bisect_right(sorted_lengths, most, 0, stop, key=lambda length: sequence_cost(length, size)) - 1


def equal_parts(lengths: Sequence[int], ranks: int, size: int, budget: int) -> list[list[Subgroup]] | None:
    """Cut a mini-batch into micro-batches of subgroups of one size, with parts of about equal cost.

    `None` if no way was found. No sequence has more tokens than `size` ranks hold, and `size` divides W.
    """
    costs = sequence_costs(lengths, size)
    beside = ranks // size
    fewest = max(1, -(-sum(lengths) // (beside * size * budget)))
    for number in range(fewest, fewest + NUMBERS):
        if number * beside > len(lengths):
            return None
        parts = worst_fit(lengths, number * beside, size * budget, costs)
        if parts is not None:
            members = [subgroup(size, part, lengths) for part in parts]
            # From the costliest to the cheapest, so neighbours are alike.
            members.sort(key=lambda member: -member.load)
            return [members[first : first + beside] for first in range(0, len(members), beside)]
    return None
