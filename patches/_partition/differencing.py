"""Karmarkar-Karp differencing with the upstreams' very result, at a fraction of their time.

The upstreams keep every state as `parts` sets, most of them empty for most of the time, and sort them all
after each merge. Here a state is the list of its sets that are not empty, the largest first: the others are
implied. Where a set of one sample meets a state, it goes near the end of the list, and the rest stays as it
is. Samples that have met nothing yet wait in a sorted list: the heap has only what has been merged.

What makes the result the same: the upstreams compare sets by sum, then number of samples, then samples. No
two sets share a sample, so the first sample decides the last of these and (sum, number, first sample) is a
strict total order. The same goes for states, by (spread, largest set). Neither sort nor heap has a choice.
"""

from __future__ import annotations

from bisect import insort
from heapq import heappop, heappush

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    Number = int | float
    #: Sum, number of samples and first sample, all negated, so that the largest set is the least; and the
    #: last sample. The samples between are found by `following`.
    Part = tuple[Number, int, int, int]
    #: What orders the heap (spread and largest set, all negated: the greatest comes first), and the sets.
    State = tuple[Number, Number, int, int, list[Part]]

#: Floats up to here add up to something finite however many there are.
_FINITE = 1e290


def is_exact(values: Any) -> bool:
    """Tell whether `karmarkar_karp` gives the upstreams' result for a sequence of values, to the last tie.

    So it does for `int`, `bool` and finite `float`, none negative: NumPy's wrap around and tensors round.
    """
    kinds = {type(value) for value in values}
    if not kinds:
        return False
    if kinds <= {int, bool}:
        return all(value >= 0 for value in values)
    return kinds <= {int, bool, float} and all(0 <= value <= _FINITE for value in values)


def karmarkar_karp(values: Sequence[Number], parts: int, *, equal_size: bool) -> list[list[int]]:
    """Return what the upstreams' `karmarkar_karp` returns: partitions, their order and the order inside.

    Args:
        values: One number for each sample, of which `is_exact` is true.
        parts: How many partitions. Those beyond the number of samples come out empty.
        equal_size: Give each partition the same number of samples.

    Raises:
        AssertionError: `equal_size`, and the samples do not divide into `parts`, as upstream.
        ValueError: No values, or fewer than one part.

    """
    count = len(values)
    if count == 0 or parts < 1:
        raise ValueError(f"cannot divide {count} samples into {parts} parts")
    if equal_size and count % parts:
        raise AssertionError(f"{count} % {parts} != 0")
    following = [-1] * count
    join = _joiner(values, following)
    # The largest last, from where it is taken.
    rising = sorted(range(count), key=values.__getitem__)
    singles: list[Part] = [(-values[index], -1, -index, index) for index in rising]
    size = parts if equal_size else 1
    waiting = [_state(singles[start : start + size][::-1], parts) for start in range(0, count, size)]
    if size > 1:
        waiting.sort(reverse=True)
    merged: list[State] = []
    for _ in range(len(waiting) - 1):
        one = heappop(merged) if merged and not (waiting and waiting[-1] < merged[0]) else waiting.pop()
        two = heappop(merged) if merged and not (waiting and waiting[-1] < merged[0]) else waiting.pop()
        heappush(merged, _state(_merge(one[-1], two[-1], parts, join), parts))
    (last,) = merged or waiting
    partitions = [_samples(part, following) for part in last[-1]]
    return partitions + [[] for _ in range(parts - len(partitions))]


def _joiner(values: Sequence[Number], following: list[int]) -> Callable[[Part, Part], Part]:
    """Return the function that puts the samples of a second set behind those of a first."""

    def join(first: Part, second: Part) -> Part:
        following[first[3]] = -second[2]
        return first[0] + second[0], first[1] + second[1], first[2], second[3]

    def join_rounded(first: Part, second: Part) -> Part:
        # Floats round, so they have to be added in the order of the upstreams: one by one.
        total = first[0]
        for index in _samples(second, following):
            total -= values[index]
        _, number, start, end = join(first, second)
        return total, number, start, end

    return join_rounded if any(type(value) is float for value in values) else join


def _samples(part: Part, following: list[int]) -> list[int]:
    """Return the samples of a set in the order in which they came together."""
    index = -part[2]
    samples = [index]
    for _ in range(-part[1] - 1):
        index = following[index]
        samples.append(index)
    return samples


def _state(sets: list[Part], parts: int) -> State:
    """Return the state of sets, the largest spread of sums the least in a heap."""
    total, number, first, _ = sets[0]
    spread = total - sets[-1][0] if len(sets) == parts else total
    return spread, total, number, first, sets


def _merge(one: list[Part], two: list[Part], parts: int, join: Callable[[Part, Part], Part]) -> list[Part]:
    """Merge two states' sets, the largest of each with the smallest of the other, empty ones included.

    So the sets of both live on by themselves but for the smallest `shared` of each, which are paired
    crosswise. Both lists are used up.
    """
    shared = len(one) + len(two) - parts
    if len(two) == 1:
        insort(one, join(one.pop(), two[0]) if shared > 0 else two[0])
        return one
    if len(one) == 1:
        insort(two, join(one[0], two.pop()) if shared > 0 else one[0])
        return two
    # Never negative: of the states that have several sets but not yet all, there is one at most, and it comes
    # before those of one sample, because its largest set came before them.
    merged = one[: len(one) - shared]
    merged += two[: len(two) - shared]
    if shared:
        merged += map(join, one[-shared:], reversed(two[-shared:]))
    # Two runs and a third: what the sort is best at.
    merged.sort()
    return merged
