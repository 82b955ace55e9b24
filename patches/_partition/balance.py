"""Dividing what one part holds, or what two hold, such that the costs of the two lie close together."""

from __future__ import annotations

from bisect import bisect_left
from heapq import heapify, heappop, heappush

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    Number = int | float


def holds(partitions: Sequence[Sequence[int]], lengths: Sequence[int], cap: int) -> bool:
    """Tell whether no part has more than `cap`, single samples that are longer than that excepted."""
    return all(len(part) == 1 or total(part, lengths) <= cap for part in partitions)


def total(part: Sequence[int], costs: Sequence[Number]) -> Number:
    """Return the cost of a part."""
    # Twice as fast as with a generator, and most of the time goes by here.
    return sum([costs[index] for index in part])


def overfull(partitions: Sequence[Sequence[int]], lengths: Sequence[int], cap: int) -> tuple[int, float]:
    """Return how many parts of several samples have more than `cap`, and the fullest part over the cap."""
    totals = [total(part, lengths) for part in partitions if len(part) > 1]
    return sum(one > cap for one in totals), max(totals, default=0) / cap


def split_largest(partitions: list[list[int]], parts: int, costs: Sequence[Number]) -> list[list[int]]:
    """Split the costliest part in half until there are `parts`, as slime 0.3.1 does, ties included."""
    partitions = list(partitions)
    heap = [(-total(part, costs), -place) for place, part in enumerate(partitions) if len(part) > 1]
    heapify(heap)
    while len(partitions) < parts:
        place = -heappop(heap)[1]
        left, right = halves(partitions[place], costs)
        partitions[place] = left
        for where, half in ((place, left), (len(partitions), right)):
            if len(half) > 1:
                heappush(heap, (-total(half, costs), -where))
        partitions.append(right)
    return partitions


def halves(part: Sequence[int], costs: Sequence[Number]) -> tuple[list[int], list[int]]:
    """Split a part of two samples or more: each in turn, costliest first, to the side with less so far."""
    left: list[int] = []
    right: list[int] = []
    ahead: Number = 0
    for index in sorted(part, key=costs.__getitem__, reverse=True):
        if ahead <= 0:
            left.append(index)
            ahead += costs[index]
        else:
            right.append(index)
            ahead -= costs[index]
    if not right:
        # All cost nothing.
        right.append(left.pop())
    return left, right


def exchange(low: list[int], high: list[int], costs: Sequence[Number]) -> tuple[list[int], list[int]]:
    """Return two parts after the one move or swap of samples that brings their costs closest together.

    They stay as they are if nothing does. `high` is the costlier one, of two samples or more.
    """
    gap = total(high, costs) - total(low, costs)
    # Giving something for nothing is a move. Doubled, so that half the gap is a whole number.
    offers = sorted([(2 * costs[index], index) for index in low] + [(0, -1)])
    least, best = gap, None
    for given in high:
        wanted = 2 * costs[given] - gap
        place = bisect_left(offers, (wanted, -1))
        for price, taken in offers[place - 1 if place else 0 : place + 1]:
            apart = wanted - price if wanted > price else price - wanted
            if apart < least:
                least, best = apart, (given, taken)
    if best is None:
        return low, high
    given, taken = best
    back = [taken] if taken >= 0 else []
    cheaper = [*(index for index in low if index != taken), given]
    return cheaper, [*(index for index in high if index != given), *back]
