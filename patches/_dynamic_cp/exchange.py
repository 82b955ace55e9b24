"""Exchanges of sequences between subgroups, for as long as the step gets shorter.

What the slowest subgroup of a micro-batch has too much is what it takes longer than the next slowest. To look
at every other sequence of the step for one that is shorter by just that would take the cube of their number.
So the sequences lie in rising order, and only a few are looked at: those next to the length that is wanted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from heapq import nlargest
from typing import NamedTuple

from overlay.patches._dynamic_cp.cost import sequence_costs
from overlay.patches._dynamic_cp.windows import Subgroup

Step = Sequence[Sequence[Subgroup]]

#: For a sequence that is given away, how many are looked at that leave too much, and too little.
ABOVE, BELOW = 24, 8
#: How many sequences of a subgroup are tried, and how many subgroups that could take one for nothing.
GIVEN, TAKERS = 8, 8


class Exchange(NamedTuple):
    """One sequence of the giver for one of the taker or none, and what both take after it."""

    giver: Subgroup
    taker: Subgroup
    #: Of their micro-batches.
    numbers: tuple[int, int]
    #: Places of the sequences among all in rising order.
    given: int
    back: int | None
    #: Picoseconds.
    loads: tuple[int, int]


def improve(step: Step, lengths: Sequence[int], room: int, budget: int, tries: int) -> int:
    """Shorten a step in place: that is, what the slowest subgroup of each micro-batch takes, in sum.

    Only the slowest subgroup of a micro-batch gives something away, to any other of the step, for something
    that is shorter or for nothing. No subgroup ends up empty, or over what its ranks hold.

    `lengths`, `room` and `budget` are as in `windows`. It looks at about `tries` exchanges, and returns at
    how many it looked.
    """
    search = _Search(step, lengths, room, budget, tries)
    improved = True
    while improved and search.tries > 0:
        improved = False
        search.look_for_room()
        for number in range(len(step)):
            found = search.best(number)
            if found is not None:
                search.make(found)
                improved = True
    return tries - search.tries


class _Search:
    """A step, and where each of its sequences is."""

    def __init__(self, step: Step, lengths: Sequence[int], room: int, budget: int, tries: int) -> None:
        self.step, self.lengths, self.room, self.budget, self.tries = step, lengths, room, budget, tries
        self.rising = sorted(range(len(lengths)), key=lengths.__getitem__)
        self.sorted_lengths = [lengths[index] for index in self.rising]
        self.places = [0] * len(lengths)
        for place, index in enumerate(self.rising):
            self.places[index] = place
        self.costs: dict[int, list[int]] = {}
        self.owners: list[tuple[int, Subgroup]] = [(0, step[0][0])] * len(lengths)
        for number, members in enumerate(step):
            for member in members:
                if member.size not in self.costs:
                    self.costs[member.size] = sequence_costs(self.sorted_lengths, member.size)
                for index in member.indices:
                    self.owners[self.places[index]] = (number, member)
        #: Of each micro-batch the three subgroups that take longest.
        self.slowest = [_slowest(members) for members in step]
        self.takers: list[tuple[int, Subgroup]] = []

    def look_for_room(self) -> None:
        """Find the subgroups that wait longest for others of their micro-batch."""
        waits = [
            (self.slowest[number][0].load - member.load, -number, -place)
            for number, members in enumerate(self.step)
            for place, member in enumerate(members)
        ]
        self.takers = [
            (-number, self.step[-number][-place]) for wait, number, place in nlargest(TAKERS, waits) if wait
        ]

    def best(self, number: int) -> Exchange | None:
        """Return the exchange of a micro-batch's slowest subgroup that gains most, of those looked at."""
        slowest = self.slowest[number]
        giver = slowest[0]
        rest = slowest[1].load if len(slowest) > 1 else 0
        if giver.load <= rest:
            return None
        costs, lengths = self.costs[giver.size], self.sorted_lengths
        found: Exchange | None = None
        most = 0
        for given in self._given(giver):
            length, less = lengths[given], giver.load - costs[given]
            for back, home, taker in self._offers(number, giver, given, rest):
                self.tries -= 1
                kept = 0 if back is None else lengths[back]
                size = taker.size
                if length - kept > size * self.budget - taker.tokens or length > size * self.room:
                    continue
                there = self.costs[size]
                ours, theirs = (
                    (less, taker.load + there[given])
                    if back is None
                    else (less + costs[back], taker.load + there[given] - there[back])
                )
                others = self.slowest[home]
                if home == number:
                    beside = next((one.load for one in others if one is not giver and one is not taker), 0)
                    gain = giver.load - max(ours, theirs, beside)
                else:
                    beside = others[0].load
                    if others[0] is taker:
                        beside = others[1].load if len(others) > 1 else 0
                    gain = giver.load + others[0].load - max(ours, rest) - max(theirs, beside)
                if gain > most:
                    most = gain
                    found = Exchange(giver, taker, (number, home), given, back, (ours, theirs))
            if self.tries <= 0:
                break
        return found

    def _given(self, giver: Subgroup) -> list[int]:
        """Return places of sequences of a subgroup: all, or some from the longest to the shortest."""
        places = [self.places[index] for index in giver.indices]
        if len(places) <= GIVEN:
            return places
        places.sort()
        return [places[(len(places) - 1) * turn // (GIVEN - 1)] for turn in range(GIVEN)]

    def _offers(
        self, number: int, giver: Subgroup, given: int, rest: int
    ) -> Iterator[tuple[int | None, int, Subgroup]]:
        """Yield what could be had for a sequence: the place of another or nothing, and from whom."""
        costs = self.costs[giver.size]
        wanted = costs[given] - (giver.load - rest)
        if len(giver.indices) > 1:
            for home, taker in self.takers:
                if taker is not giver:
                    yield None, home, taker
            taker = min(self.step[number], key=lambda one: one.load)
            if taker is not giver:
                yield None, number, taker
        place = bisect_left(costs, wanted, 0, given)
        for back in range(max(0, place - BELOW), min(given, place + ABOVE)):
            home, taker = self.owners[back]
            if taker is not giver and costs[back] < costs[given]:
                yield back, home, taker

    def make(self, exchange: Exchange) -> None:
        """Make an exchange."""
        giver, taker = exchange.giver, exchange.taker
        given = self.rising[exchange.given]
        moved = self.lengths[given]
        giver.indices.remove(given)
        taker.indices.append(given)
        home, there = exchange.numbers
        self.owners[exchange.given] = (there, taker)
        if exchange.back is not None:
            back = self.rising[exchange.back]
            moved -= self.lengths[back]
            taker.indices.remove(back)
            giver.indices.append(back)
            self.owners[exchange.back] = (home, giver)
        giver.tokens -= moved
        taker.tokens += moved
        giver.load, taker.load = exchange.loads
        for number in {home, there}:
            self.slowest[number] = _slowest(self.step[number])


def _slowest(members: Sequence[Subgroup]) -> list[Subgroup]:
    """Return the three that take longest, or as many as there are."""
    return nlargest(3, members, key=lambda member: member.load)
