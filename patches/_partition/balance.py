"""Splitting parts until there are enough, and levelling their costs, without ever breaking the cap."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from overlay.patches._partition.differencing import karmarkar_karp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    Number = int | float

#: After so many rounds the parts are as level as they get.
_ROUNDS = 20


def split_largest(partitions: list[list[int]], parts: int, costs: Sequence[Number]) -> list[list[int]]:
    """Split the part of the greatest cost in half until there are `parts`, no more than there are samples.

    Each half is less than what it was split from, so a cap that was held stays held. slime 0.3.1 grows its
    parts in this way, ties included, so its result is a floor under this module's.
    """
    partitions = list(partitions)
    heap = [
        (-sum(costs[index] for index in part), -place)
        for place, part in enumerate(partitions)
        if len(part) > 1
    ]
    heapify(heap)
    while len(partitions) < parts:
        place = -heappop(heap)[1]
        left, right = _halves(partitions[place], costs)
        partitions[place] = left
        for where, half in ((place, left), (len(partitions), right)):
            if len(half) > 1:
                heappush(heap, (-sum(costs[index] for index in half), -where))
        partitions.append(right)
    return partitions


def _halves(part: list[int], costs: Sequence[Number]) -> tuple[list[int], list[int]]:
    """Split a part of two samples or more: each in turn, costliest first, to the side with less so far."""
    left: list[int] = []
    right: list[int] = []
    ahead: Number = 0
    for index in sorted(part, key=lambda index: -costs[index]):
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


def level(partitions: list[list[int]], lengths: Sequence[int], cap: int, costs: Sequence[Number]) -> None:
    """Bring the costs of the parts closer together, in place.

    In each round the cheapest part is paired with the costliest that has several samples, the next with the
    next, and each pair is divided anew by differencing. Only what lies closer together and holds the cap is
    taken, so the greatest cost never rises and the least never falls.
    """
    for _ in range(_ROUNDS):
        totals = [sum(costs[index] for index in part) for part in partitions]
        order = sorted(range(len(partitions)), key=lambda place: (totals[place], place))
        several = [place for place in reversed(order) if len(partitions[place]) > 1]
        changed = False
        for low, high in zip(order, several, strict=False):
            before = totals[high] - totals[low]
            if before <= 0:
                break
            samples = sorted(partitions[low] + partitions[high])
            halves = karmarkar_karp([costs[index] for index in samples], 2, equal_size=False)
            one, two = ([samples[position] for position in half] for half in halves)
            after = sum(costs[index] for index in one) - sum(costs[index] for index in two)
            if abs(after) < before and holds((one, two), lengths, cap):
                partitions[low], partitions[high] = one, two
                changed = True
        if not changed:
            return


def holds(partitions: Sequence[Sequence[int]], lengths: Sequence[int], cap: int) -> bool:
    """Tell whether no part has more than `cap`, single samples that are longer than that excepted."""
    return all(len(part) == 1 or sum(lengths[index] for index in part) <= cap for part in partitions)
