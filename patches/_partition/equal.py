"""Shares of equal number and about equal cost: Karmarkar-Karp, then swaps between the shares.

With `equal_size` Karmarkar-Karp gives each share one of the k costliest samples, one of the next k, and so
on: nothing makes up for the difference between the first k. A swap is not bound to that. Where a single
sample is above the mean of the shares, hundreds of swaps would only give it the cheapest for company. Dealt
out, costliest first, the samples lie like that from the start.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heappop, heapreplace

from overlay.patches._partition.differencing import karmarkar_karp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    #: Cost and index of the sample that is given, and of the one that is taken.
    Swap = tuple[tuple[int, int], tuple[int, int]]

#: The costliest share may be above the mean by one part in so many, and still be worth no swap.
TOLERANCE = 1000
#: From one start, how many samples may be looked at in search of swaps: with thousands of samples none of
#: which is far above the rest, a tenth of it is.
LOOKS = 100_000


def is_even(top: int, total: int, shares: int) -> bool:
    """Return whether the costliest of the shares, at `top`, is within a thousandth of the mean."""
    return top * shares * TOLERANCE <= total * (TOLERANCE + 1)


def equal_shares(costs: Sequence[int], shares: int) -> list[list[int]]:
    """Return the indices of `costs` in shares of one size, the costliest as near the mean as swaps bring it.

    What Karmarkar-Karp returns is left alone if it is within a thousandth of the mean. The costliest share is
    never costlier than its costliest. Costs are in any unit; the shares divide their number.
    """
    parts = karmarkar_karp(costs, shares, equal_size=True)
    total = sum(costs)
    if is_even(max(sum([costs[index] for index in part]) for part in parts), total, shares):
        return parts
    least = least_top(costs, shares)
    ours, other = _Shares(costs, parts), _Shares(costs, dealt(costs, shares))
    first, second = (ours, other) if is_even(least, total, shares) else (other, ours)
    first.swap(total)
    if not is_even(first.top(), max(total, shares * least), shares) or second.top() < first.top():
        second.swap(total)
    best = ours if ours.top() <= other.top() or is_even(ours.top(), total, shares) else other
    return [[index for _, index in part] for part in best.ranked]


def least_top(costs: Sequence[int], shares: int) -> int:
    """Return what the costliest of equal shares costs at least: the mean, or the costliest sample's share."""
    ranked = sorted(costs)
    return max(-(-sum(costs) // shares), ranked[-1] + sum(ranked[: len(ranked) // shares - 1]))


def dealt(costs: Sequence[int], shares: int) -> list[list[int]]:
    """Deal the samples out, the costliest first, each to the cheapest of the shares that are not full."""
    size = len(costs) // shares
    parts: list[list[int]] = [[] for _ in range(shares)]
    heap = [(0, share) for share in range(shares)]
    for index in sorted(range(len(costs)), key=lambda index: (-costs[index], index)):
        load, share = heap[0]
        parts[share].append(index)
        if len(parts[share]) == size:
            heappop(heap)
        else:
            heapreplace(heap, (load + costs[index], share))
    return parts


class _Shares:
    """Shares with what they cost, of which two at a time exchange a sample."""

    def __init__(self, costs: Sequence[int], parts: Sequence[Sequence[int]]) -> None:
        #: Cost and index of each sample of a share, rising.
        self.ranked = [sorted([(costs[index], index) for index in part]) for part in parts]
        #: Cost and place of each share, rising.
        self.order = sorted(
            (sum([cost for cost, _ in part]), share) for share, part in enumerate(self.ranked)
        )
        self.looks = max(LOOKS, 8 * len(costs))

    def top(self) -> int:
        """Return the cost of the costliest share."""
        return self.order[-1][0]

    def swap(self, total: int) -> None:
        """Swap until the costliest share is within a thousandth of the mean, or nothing helps it."""
        while self.looks > 0 and not is_even(self.top(), total, len(self.order)):
            # Of the costliest the first, as it has always been.
            place = bisect_left(self.order, (self.top(), -1))
            costliest = self.order[place]
            # The cheapest first: it takes most. Each swap brings two shares closer together, so this ends.
            for other in self.order:
                swap = self._find(costliest, other)
                if swap is not None or self.looks <= 0:
                    break
            if swap is None:
                return
            self._make(costliest, other, swap)

    def _find(self, high: tuple[int, int], low: tuple[int, int]) -> Swap | None:
        giver, taker = self.ranked[high[1]], self.ranked[low[1]]
        gap = high[0] - low[0]
        if gap <= 0 or giver[-1][0] <= taker[0][0]:
            self.looks -= 1
            return None
        self.looks -= len(giver)
        return _best_swap(giver, taker, gap)

    def _make(self, high: tuple[int, int], low: tuple[int, int], swap: Swap) -> None:
        ours, theirs = swap
        moved = ours[0] - theirs[0]
        for (cost, share), out, into, change in ((high, ours, theirs, -moved), (low, theirs, ours, moved)):
            part = self.ranked[share]
            del part[bisect_left(part, out)]
            insort(part, into)
            del self.order[bisect_left(self.order, (cost, share))]
            insort(self.order, (cost + change, share))


def _best_swap(giver: Sequence[tuple[int, int]], taker: Sequence[tuple[int, int]], gap: int) -> Swap | None:
    """Return the samples to exchange such that the gap between two shares shrinks most, `None` if none does.

    A share is cost and index of each sample, rising; the giver's is the costlier one, by `gap`.
    """
    best: Swap | None = None
    left = gap
    for given in giver:
        # A difference of half the gap closes it: what is nearest to that stands here or one before.
        place = bisect_left(taker, (given[0] - gap // 2, -1))
        for taken in taker[max(place - 1, 0) : place + 1]:
            after = abs(gap - 2 * (given[0] - taken[0]))
            if after < left:
                best, left = (given, taken), after
    return best
