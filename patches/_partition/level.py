"""Levelling the costs of partitions that hold a cap."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

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
    parts = _Parts(partitions, lengths, cap, costs)
    parts.settle(lambda ranked, several: ((low, ranked[-1]) for low in ranked if ranked[-1] == several[-1]))
    parts.settle(lambda ranked, several: ((ranked[0], high) for high in reversed(several)))


class _Parts:
    """Partitions and what they cost."""

    def __init__(
        self, partitions: list[list[int]], lengths: Sequence[int], cap: int, costs: Sequence[Number]
    ) -> None:
        self.partitions = partitions
        self.lengths = lengths
        self.cap = cap
        self.costs = costs
        self.totals = [total(part, costs) for part in partitions]
        #: The costs of each part's samples, rising. Of floats they do not say what a sum is rounded to.
        self.rising: list[list[Number]] = []
        if {type(cost) for cost in costs} <= {int, bool}:
            self.rising = [sorted([costs[index] for index in part]) for part in partitions]

    def settle(self, pairs: Callable[[list[Ranked], list[Ranked]], Iterable[tuple[Ranked, Ranked]]]) -> None:
        """Divide the first of the pairs that this helps, again and again.

        `pairs` gets all parts, and those of several samples, each cheapest first. It gives a cheaper part and
        a costlier one of several samples, the most promising pair first.
        """
        ranked = sorted((cost, place) for place, cost in enumerate(self.totals))
        # Of those that cost most, many are one long sample each: to pass them by took half of the time.
        several = [entry for entry in ranked if self.is_several(entry)]
        tries = _TRIES * len(ranked)
        changed = bool(several)
        while changed:
            changed = False
            for low, high in pairs(ranked, several):
                if high[0] <= low[0] or tries == 0:
                    return
                tries -= 1
                if self.rising and not closer(self.rising[low[1]], self.rising[high[1]], high[0] - low[0]):
                    continue  # as nearly all pairs that are tried
                was_several = self.is_several(low)
                if self.divide(low[1], high[1]):
                    del ranked[bisect_left(ranked, low)]
                    del ranked[bisect_left(ranked, high)]
                    if was_several:
                        del several[bisect_left(several, low)]
                    del several[bisect_left(several, high)]
                    for place in (low[1], high[1]):
                        entry = (self.totals[place], place)
                        insort(ranked, entry)
                        if self.is_several(entry):
                            insort(several, entry)
                    changed = bool(several)
                    break

    def is_several(self, entry: Ranked) -> bool:
        """Tell whether a part has more than one sample."""
        return len(self.partitions[entry[1]]) > 1

    def divide(self, low: int, high: int) -> bool:
        """Divide what two parts hold anew if that brings them closer together; tell whether it did."""
        one, two = self.partitions[low], self.partitions[high]
        least = self.totals[high] - self.totals[low]
        changed = False
        for parts in (exchange(one, two, self.costs), halves(one + two, self.costs)):
            costs = [total(part, self.costs) for part in parts]
            apart = abs(costs[0] - costs[1])
            if apart < least and holds(parts, self.lengths, self.cap):
                least, changed = apart, True
                self.partitions[low], self.partitions[high] = parts
                self.totals[low], self.totals[high] = costs
        if changed and self.rising:
            for place in (low, high):
                self.rising[place] = sorted([self.costs[index] for index in self.partitions[place]])
        return changed


def closer(low: list[Number], high: list[Number], gap: Number) -> bool:
    """Tell whether `exchange` or `halves` brings two parts closer together, whatever the cap says.

    A part is what each sample costs, whole numbers, rising; the costlier part, `high`, is so by `gap`.
    """
    for given in high:
        # What it costs more than what is taken for it, which may be nothing, is less than the gap.
        if 0 < given < gap:
            return True
        place = bisect_right(low, given - gap)
        if place < len(low) and low[place] < given:
            return True
    ahead: Number = 0
    for cost in sorted(low + high, reverse=True):
        if ahead <= 0:
            ahead += cost
        else:
            ahead -= cost
    return -gap < ahead < gap
