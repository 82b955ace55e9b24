"""Packing samples into as few parts as hold a cap: a sample over it is alone. And bounds on how few."""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heappop, heappush, heapreplace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    Number = int | float

#: Bounds that are tried. Each takes a pass over the samples, and more of them rarely help.
_GRAINS = 10


def first_fit(lengths: Sequence[int], cap: int) -> list[list[int]]:
    """Put each sample, in order, into the first part with room for it, or into a new one."""
    # The parts are the leaves of a tree whose inner nodes know the most room below them.
    leaves = 1 << max(len(lengths) - 1, 0).bit_length()
    room = [cap] * (2 * leaves)
    parts: list[list[int]] = []
    for index, length in enumerate(lengths):
        if length > cap:
            node = leaves + len(parts)
            room[node] = -1
        else:
            node = 1
            while node < leaves:
                node *= 2
                if room[node] < length:
                    node += 1
            room[node] -= length
        if node - leaves == len(parts):
            parts.append([])
        parts[node - leaves].append(index)
        while node > 1:
            # Above a node that knows of more room elsewhere nothing changes.
            most = max(room[node], room[node ^ 1])
            node //= 2
            if room[node] == most:
                break
            room[node] = most
    return parts


def first_fit_decreasing(lengths: Sequence[int], cap: int) -> list[list[int]]:
    """Put each sample, longest first, into the first part with room for it, or into a new one."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    parts = first_fit([lengths[index] for index in order], cap)
    return [[order[place] for place in part] for part in parts]


def best_fit_decreasing(lengths: Sequence[int], cap: int) -> list[list[int]]:
    """Put each sample, longest first, into the part with the least room that is enough, or into a new one."""
    parts: list[list[int]] = []
    count = len(lengths)
    #: Of each part its room times `count`, and its place: in the order of both, and faster than pairs.
    rooms: list[int] = []
    # Of equal length the first one first, as a sort keeps them.
    for index in sorted(range(count), key=lengths.__getitem__, reverse=True):
        length = lengths[index]
        place = bisect_left(rooms, length * count)
        if place < len(rooms):
            room, part = divmod(rooms.pop(place), count)
        else:
            room, part = cap, len(parts)
            parts.append([])
        parts[part].append(index)
        insort(rooms, (room - length) * count + part)
    return parts


def worst_fit(
    lengths: Sequence[int], parts: int, cap: int, costs: Sequence[Number]
) -> list[list[int]] | None:
    """Put each sample, costliest first, into the cheapest part with room; `None` if there is none for one."""
    partitions: list[list[int]] = [[] for _ in range(parts)]
    rooms = [cap] * parts
    heap: list[tuple[Number, int, int]] = [(0, 0, place) for place in range(parts)]
    shortest = min(lengths, default=0)
    #: Parts without room for the last sample, those with the most room first. Samples mostly get shorter, so
    #: that what is laid aside is looked at again only when it has room.
    aside: list[tuple[int, tuple[Number, int, int]]] = []
    # What must be alone goes first, while there are empty parts.
    for index in sorted(range(len(lengths)), key=lambda index: (lengths[index] <= cap, -costs[index], index)):
        length = min(lengths[index], cap)
        while aside and -aside[0][0] >= length:
            heappush(heap, heappop(aside)[1])
        while heap and rooms[heap[0][-1]] < length:
            entry = heappop(heap)
            heappush(aside, (-rooms[entry[-1]], entry))
        if not heap:
            return None
        cost, number, place = heap[0]
        rooms[place] -= lengths[index]
        partitions[place].append(index)
        if rooms[place] >= shortest:
            heapreplace(heap, (cost + costs[index], number + 1, place))
        else:
            heappop(heap)
    return partitions


def least_parts(lengths: Sequence[int], cap: int) -> int:
    """Return a number of parts below which nothing holds the cap.

    That is the sum of the lengths over the cap, or the same with each length rounded to a grain in such a
    way that a part which holds the cap still does (the dual feasible functions of Fekete and Schepers, 2001):
    with grain 1, say, samples over half the cap count whole and the shorter ones not at all.
    """
    clipped = [min(length, cap) for length in lengths]
    least = -(-sum(clipped) // cap)
    for grain in range(1, _GRAINS + 1):
        total = 0
        for length in clipped:
            whole, rest = divmod((grain + 1) * length, cap)
            total += whole * cap if rest else grain * length
        least = max(least, -(-total // (grain * cap)))
    return least
