"""Shares of equal number and about equal cost: Karmarkar-Karp, then swaps between the shares.

With `equal_size` Karmarkar-Karp gives each share one of the k costliest samples, one of the next k, and so
on. Where few samples are far above the rest, nothing makes up for the difference between the first k. A swap
is not bound to that.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from overlay.patches._partition.differencing import karmarkar_karp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

#: The costliest share may be above the mean by one part in so many, and still be worth no swap.
TOLERANCE = 1000


def is_even(top: int, total: int, shares: int) -> bool:
    """Return whether the costliest of the shares, at `top`, is within a thousandth of the mean."""
    return top * shares * TOLERANCE <= total * (TOLERANCE + 1)


def equal_shares(costs: Sequence[int], shares: int) -> list[list[int]]:
    """Return the indices of `costs` in shares of one size, the costliest as near the mean as swaps bring it.

    What Karmarkar-Karp returns is left alone if it is within a thousandth of the mean.

    Args:
        costs: Of each sample, in any unit.
        shares: How many; it divides the samples.

    """
    parts = karmarkar_karp(costs, shares, equal_size=True)
    total = sum(costs)
    ranked = [sorted((costs[index], index) for index in part) for part in parts]
    sums = [sum(cost for cost, _ in part) for part in ranked]
    swapped = False
    while not is_even(top := max(sums), total, shares):
        costliest = sums.index(top)
        # The cheapest first: it takes most. Each swap brings two shares nearer to each other, so this ends.
        for other in sorted(range(shares), key=lambda share: sums[share]):
            swap = _best_swap(ranked[costliest], ranked[other], top - sums[other])
            if swap is not None:
                break
        else:
            break
        swapped = True
        ours, theirs = swap
        for share, out, into in ((costliest, ours, theirs), (other, theirs, ours)):
            ranked[share].remove(out)
            insort(ranked[share], into)
            sums[share] += into[0] - out[0]
    return [[index for _, index in part] for part in ranked] if swapped else parts


def _best_swap(
    giver: Sequence[tuple[int, int]], taker: Sequence[tuple[int, int]], gap: int
) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Return the samples to exchange such that the gap between two shares shrinks most, `None` if none does.

    Args:
        giver: Cost and index of each sample of the costlier share, rising.
        taker: The same of the other.
        gap: By how much the one is costlier.

    """
    best: tuple[tuple[int, int], tuple[int, int]] | None = None
    left = gap
    for given in giver:
        # A difference of half the gap closes it: what is nearest to that stands here or one before.
        place = bisect_left(taker, (given[0] - gap // 2, -1))
        for taken in taker[max(place - 1, 0) : place + 1]:
            after = abs(gap - 2 * (given[0] - taken[0]))
            if after < left:
                best, left = (given, taken), after
    return best
