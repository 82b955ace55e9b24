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
    """Bring the costs of the parts closer together, in place.

    Two parts at a time are divided anew. Only what lies closer together and holds the cap is taken, so the
    greatest cost of all never rises and the least never falls.
    """
    parts = _Parts(partitions, lengths, cap, costs)
    parts.settle(lambda ranked: ((low, ranked[-1]) for low in ranked))
    parts.settle(lambda ranked: ((ranked[0], high) for high in reversed(ranked)))


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

    def settle(self, pairs: Callable[[list[Ranked]], Iterable[tuple[Ranked, Ranked]]]) -> None:
        """Divide the first of the pairs that this helps, again and again.

        Args:
            pairs: Gives pairs of a cheaper and a costlier part, the most promising first, from all parts with
                the cheapest first.

        """
        ranked = sorted((cost, place) for place, cost in enumerate(self.totals))
        tries = _TRIES * len(ranked)
        changed = True
        while changed:
            changed = False
            for low, high in pairs(ranked):
                if high[0] <= low[0] or tries == 0:
                    return
                if len(self.partitions[high[1]]) == 1:
                    continue
                tries -= 1
                if self.divide(low[1], high[1]):
                    for cost, place in (low, high):
                        del ranked[bisect_left(ranked, (cost, place))]
                        insort(ranked, (self.totals[place], place))
                    changed = True
                    break

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
        return changed
