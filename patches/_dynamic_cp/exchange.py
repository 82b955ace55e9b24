"""Exchanges of sequences between subgroups, for as long as the step gets shorter."""

from __future__ import annotations

from itertools import chain, combinations

from overlay.patches._dynamic_cp.cost import of_sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from overlay.patches._dynamic_cp.windows import Subgroup

    Step = Sequence[Sequence[Subgroup]]


class Exchange:
    """One sequence of the giver for none, one or two of the taker, and what both take after it."""

    __slots__ = ("back", "gain", "given", "giver", "loads", "taker")

    def __init__(
        self,
        gain: int,
        giver: Subgroup,
        taker: Subgroup,
        given: int,
        back: tuple[int, ...],
        loads: tuple[int, int],
    ) -> None:
        """Hold all of it; `gain` is in picoseconds of the step."""
        self.gain, self.giver, self.taker = gain, giver, taker
        self.given, self.back, self.loads = given, back, loads

    def make(self, lengths: Sequence[int]) -> None:
        """Make the exchange."""
        giver, taker = self.giver, self.taker
        giver.indices = [index for index in giver.indices if index != self.given] + [*self.back]
        taker.indices = [index for index in taker.indices if index not in self.back] + [self.given]
        moved = lengths[self.given] - sum(lengths[index] for index in self.back)
        giver.tokens -= moved
        taker.tokens += moved
        giver.load, taker.load = self.loads


def improve(step: Step, lengths: Sequence[int], room: int, budget: int, tries: int) -> None:
    """Shorten a step in place: that is, what the slowest subgroup of each micro-batch takes, in sum.

    Only the slowest subgroup of a micro-batch gives something away, to any other of the step, for something
    that is shorter or for nothing. No subgroup ends up empty, or over what its ranks hold.

    Args:
        step: Micro-batches of subgroups.
        lengths: Tokens of each sequence of the step.
        room: Tokens of one sequence that a rank holds.
        budget: Tokens of a micro-batch that a rank holds.
        tries: About how many exchanges may be looked at.

    """
    improved = True
    while improved:
        improved = False
        for members in step:
            if tries <= 0:
                return
            best, looked = _best(step, members, lengths, room, budget)
            tries -= looked
            if best is not None:
                best.make(lengths)
                improved = True


def _best(
    step: Step, members: Sequence[Subgroup], lengths: Sequence[int], room: int, budget: int
) -> tuple[Exchange | None, int]:
    """Return the exchange of the slowest member that gains most, and how many were looked at."""
    giver = _slowest(members)
    rest = _load(members, giver)
    best: Exchange | None = None
    gain = looked = 0
    for takers in step:
        at_home = takers is members
        before = giver.load if at_home else giver.load + _slowest(takers).load
        for taker in takers:
            if taker is giver:
                continue
            beside = _load(takers, giver, taker)
            offers = [
                (
                    back,
                    sum([lengths[index] for index in back]),
                    sum([of_sequence(lengths[index], giver.size) for index in back]),
                    sum([of_sequence(lengths[index], taker.size) for index in back]),
                )
                for back in chain(((),), combinations(taker.indices, 1), combinations(taker.indices, 2))
                if back or len(giver.indices) > 1
            ]
            free, largest = taker.size * budget - taker.tokens, taker.size * room
            for given in giver.indices:
                length = lengths[given]
                if length > largest:
                    continue
                less = giver.load - of_sequence(length, giver.size)
                more = taker.load + of_sequence(length, taker.size)
                looked += len(offers)
                for back, tokens, here, there in offers:
                    if tokens >= length or length - tokens > free:
                        continue
                    ours, theirs = less + here, more - there
                    after = max(ours, theirs, beside) if at_home else max(ours, rest) + max(theirs, beside)
                    if before - after > gain:
                        gain = before - after
                        best = Exchange(gain, giver, taker, given, back, (ours, theirs))
    return best, looked


def _slowest(members: Sequence[Subgroup]) -> Subgroup:
    return max(members, key=lambda member: member.load)


def _load(members: Sequence[Subgroup], *without: Subgroup) -> int:
    """Return the most that any member takes but those without which it is asked."""
    return max([member.load for member in members if member not in without], default=0)
