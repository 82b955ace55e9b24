"""Levelling the costs of partitions that hold a cap."""

from __future__ import annotations

from bisect import bisect_left, insort

from overlay.patches._partition.balance import exchange, halves, holds, total

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Number = int | float
    #: Cost and place of a part.
    Ranked = tuple[Number, int]

#: How many pairs are tried for the cheapest parts, and for the costliest, as a multiple of the parts.
_TRIES = 4


def level(partitions: list[list[int]], lengths: Sequence[int], cap: int, costs: Sequence[Number]) -> None:
    """Bring the costs of the parts closer together, in place, two at a time.

    What is taken holds the cap, so the greatest cost of all never rises and the least never falls.
    """
    totals = [total(part, costs) for part in partitions]

    def divide(low: int, high: int) -> bool:
        """Divide what two parts hold anew if that brings them closer together; tell whether it did."""
        one, two = partitions[low], partitions[high]
        least = totals[high] - totals[low]
        changed = False
        for parts in (exchange(one, two, costs), halves(one + two, costs)):
            both = [total(part, costs) for part in parts]
            apart = abs(both[0] - both[1])
            if apart < least and holds(parts, lengths, cap):
                least, changed = apart, True
                partitions[low], partitions[high] = parts
                totals[low], totals[high] = both
        return changed

    def several(entry: Ranked) -> bool:
        return len(partitions[entry[1]]) > 1

    _settle(totals, divide, lambda ranked: ((low, ranked[-1]) for low in ranked if several(ranked[-1])))
    _settle(totals, divide, lambda ranked: ((ranked[0], high) for high in reversed(ranked) if several(high)))


def _settle(
    totals: list[Number],
    divide: Callable[[int, int], bool],
    pairs: Callable[[list[Ranked]], Iterable[tuple[Ranked, Ranked]]],
) -> None:
    """Divide the first of the pairs that this helps, again and again.

    `pairs` gets all parts, cheapest first. It gives a cheaper part and a costlier one of several samples, the
    most promising pair first.
    """
    ranked = sorted((cost, place) for place, cost in enumerate(totals))
    tries = _TRIES * len(ranked)
    changed = True
    while changed:
        changed = False
        for low, high in pairs(ranked):
            if high[0] <= low[0] or tries == 0:
                return
            tries -= 1
            if divide(low[1], high[1]):
                for entry in (low, high):
                    del ranked[bisect_left(ranked, entry)]
                    insort(ranked, (totals[entry[1]], entry[1]))
                changed = True
                break
