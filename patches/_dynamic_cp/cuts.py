"""The ways to cut that are tried for a plan, within a number of operations.

A plan is made while ranks wait for it. So what it costs is counted, and what is beyond the count is left out:
with thousands of sequences that is everything but windows of similar lengths, which then take least anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from overlay.patches._dynamic_cp.cost import Meter
from overlay.patches._dynamic_cp.exchange import improve
from overlay.patches._dynamic_cp.other_planners import by_number, megatron_rule, one_size_each, replicated
from overlay.patches._dynamic_cp.plan import allowed_sizes, plan_uniform
from overlay.patches._dynamic_cp.windows import (
    Fill,
    Subgroup,
    equal_parts,
    smallest_size,
    subgroup,
    windows,
)

Step = list[list[Subgroup]]

#: What may be spent on a plan beside the cut that is made in any case.
OPERATIONS = 16_000
#: How many of the cuts are improved, the best of them.
IMPROVED = 8
#: Operations for a sequence of windows, of parts of equal cost and of one size, and before improving.
WINDOWS, EVEN, UNIFORM, PREPARED = 2, 3, 2, 2
#: Operations for a micro-batch, and for an exchange that is looked at.
MICRO_BATCH, TRY = 5, 1
#: With so many sequences in a subgroup windows are level; with fewer they are filled up.
MANY = 6


class Cuts:
    """The cuts of some sequences that were found so far, and what may still be spent."""

    def __init__(self, lengths: Sequence[int], ranks: int, room: int, budget: int) -> None:
        """Start without any. Arguments are as in `windows`."""
        self.lengths, self.ranks, self.room, self.budget = lengths, ranks, room, budget
        self.meter = Meter(OPERATIONS)
        #: Picoseconds that each takes, in the order in which they were found.
        self.found: dict[int, Step] = {}

    def of_step(self) -> None:
        """Find cuts into any number of micro-batches."""
        for step in chain(self._windows(), self._others()):
            self._add(step)

    def of_micro_batch(self) -> None:
        """Find cuts that leave all sequences in one micro-batch, if there are any."""
        for step in chain(self._given(), self._windows(), self._others()):
            if len(step) == 1:
                self._add(step)

    def best(self) -> Step:
        """Return the cut that takes least after the most promising have been improved."""
        promising = sorted(self.found)[:IMPROVED]
        for number, takes_before in enumerate(promising):
            step = self.found[takes_before]
            if self.meter.take(PREPARED * len(self.lengths) + MICRO_BATCH * len(step)):
                tries = self.meter.left // (len(promising) - number) // TRY
                tried = improve(step, self.lengths, self.room, self.budget, tries)
                self.meter.left -= TRY * tried
        return min(self.found.values(), key=takes)

    def _add(self, step: Step) -> None:
        """Keep a cut, unless another takes just as long: nearly always it is the same."""
        self.meter.left -= MICRO_BATCH * len(step)
        self.found.setdefault(takes(step), step)

    def _windows(self) -> Iterator[Step]:
        """Yield windows of similar lengths, the first of them in any case."""
        lengths, ranks, room, budget = self.lengths, self.ranks, self.room, self.budget
        fills: list[Fill] = ["full", "level", "apart"]
        if len(lengths) * budget > MANY * sum(lengths):
            fills = ["level", "apart", "full"]
        needed = smallest_size(min(lengths), room)
        self.meter.left -= WINDOWS * len(lengths)
        yield windows(lengths, ranks, room, budget, 1, fills[0])
        if needed == ranks:
            # There is one size, and no way to fill but one.
            yield from self._even(ranks)
            fills = []
        for size in allowed_sizes(ranks):
            # No window is other than before if all that is in it needs so many ranks in any case.
            for fill in fills if size > needed else fills[1:] if size == 1 else []:
                if self.meter.take(WINDOWS * len(lengths)):
                    yield windows(lengths, ranks, room, budget, size, fill)
            if size == 1:
                yield from _there(one_size_each(lengths, ranks, room, self.budget, self.meter))

    def _even(self, size: int) -> list[Step]:
        if size * self.room < max(self.lengths) or not self.meter.take(EVEN * len(self.lengths)):
            return []
        return _there(equal_parts(self.lengths, self.ranks, size, self.budget))

    def _others(self) -> Iterator[Step]:
        """Yield parts of equal cost for each size, and what others make."""
        lengths, ranks, room, budget = self.lengths, self.ranks, self.room, self.budget
        for size in allowed_sizes(ranks):
            yield from self._even(size)
        yield from replicated(lengths, ranks, room, budget, self.meter)
        yield from _there(megatron_rule(lengths, ranks, room, self.meter))

    def _given(self) -> Iterator[Step]:
        """Yield what verl makes of a micro-batch in any case, and the plan with one size."""
        yield from _there(by_number(self.lengths, self.ranks, self.room, self.budget))
        if self.meter.take(UNIFORM * len(self.lengths)):
            plan = plan_uniform(self.lengths, self.ranks, self.room, self.budget)
            members = [subgroup(size, [*indices], self.lengths) for _, size, indices in plan]
            if all(member.tokens <= member.size * self.budget for member in members):
                yield [members]


def takes(step: Step) -> int:
    """Return how many picoseconds a step takes by the model."""
    return sum([max([member.load for member in members]) for members in step])


def _there(step: Step | None) -> list[Step]:
    """Return the step, if there is one."""
    return [] if step is None else [step]
