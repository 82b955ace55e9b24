"""Micro-batches of sequences of similar length: what there is in one takes its ranks about as long.

The longest sequences that are left open a micro-batch, one to a subgroup, each in the smallest that holds it.
Powers of two in falling order fill the ranks and start at multiples of themselves. What room is left in a
subgroup goes to the longest that fits, the subgroup with the least to do first.
"""

from __future__ import annotations

from bisect import bisect_right
from heapq import heapify, heappop, heapreplace

from overlay.patches._dynamic_cp.cost import of_sequence, of_start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class Subgroup:
    """Ranks that share sequences: how many, which sequences, their tokens, and the picoseconds they take."""

    __slots__ = ("indices", "load", "size", "tokens")

    def __init__(self, size: int, indices: list[int], tokens: int, load: int) -> None:
        """Hold what is known already; see `subgroup` for a new one."""
        self.size, self.indices, self.tokens, self.load = size, indices, tokens, load


def subgroup(size: int, indices: list[int], lengths: Sequence[int]) -> Subgroup:
    """Make a subgroup of some sequences, and work out what they cost."""
    taken = [lengths[index] for index in indices]
    load = of_start(size) + sum([of_sequence(length, size) for length in taken])
    return Subgroup(size, indices, sum(taken), load)


def smallest_size(length: int, room: int) -> int:
    """Return the smallest power of two of ranks with room for so many tokens each that hold a sequence."""
    return 1 << max(0, -(-length // room) - 1).bit_length()


def windows(
    lengths: Sequence[int], ranks: int, room: int, budget: int, least: int = 1
) -> list[list[Subgroup]]:
    """Cut a mini-batch into micro-batches, and those into subgroups in falling order of size.

    Args:
        lengths: Tokens of each sequence; the ranks together have room for any.
        ranks: W, a power of two.
        room: Tokens of one sequence that a rank holds.
        budget: Tokens of a micro-batch that a rank holds, at least `room`.
        least: No subgroup is smaller.

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
            load = of_start(size) + of_sequence(length, size)
            members.append(Subgroup(size, [index], length, load))
            free -= size
        _spread(members, free, lengths)
        _fill(members, rising, sorted_lengths, room, budget)
        members.sort(key=lambda member: -member.size)
        found.append(members)
    return found


def _spread(members: list[Subgroup], free: int, lengths: Sequence[int]) -> None:
    """Let subgroups have the ranks for which there is no sequence: those with most to do, twice as many."""
    while free:
        member = max((one for one in members if one.size <= free), key=lambda one: one.load)
        free -= member.size
        bigger = subgroup(2 * member.size, member.indices, lengths)
        members[members.index(member)] = bigger


def _fill(
    members: list[Subgroup], rising: list[int], sorted_lengths: list[int], room: int, budget: int
) -> None:
    """Give the subgroups what else they have room for, and take it off what is left."""
    heap = [(member.load, place) for place, member in enumerate(members)]
    heapify(heap)
    while heap and rising:
        place = heap[0][1]
        member = members[place]
        most = min(member.size * budget - member.tokens, member.size * room)
        fitting = bisect_right(sorted_lengths, most) - 1
        if fitting < 0:
            heappop(heap)
            continue
        length = sorted_lengths.pop(fitting)
        member.indices.append(rising.pop(fitting))
        member.tokens += length
        member.load += of_sequence(length, member.size)
        heapreplace(heap, (member.load, place))
