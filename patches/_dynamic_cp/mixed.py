"""Plans with several context parallel sizes: for the micro-batches of a step, and for one that is given.

Some ways to cut the sequences are tried, and the one that takes least by the model of `cost` is the plan. A
step takes the sum over its micro-batches of what the slowest subgroup takes. That is exact where pipeline
stages or experts make ranks wait for each other, and elsewhere no less than the truth.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heapreplace
from itertools import groupby

from overlay.patches._dynamic_cp.cost import sequence_cost, start_cost
from overlay.patches._dynamic_cp.plan import Plan, allowed_sizes, check_longest, plan_uniform
from overlay.patches._partition import capped_partitions

#: The sequences of a micro-batch, ascending, and its plan, which counts them from 0.
MicroBatch = tuple[list[int], Plan]

#: Ranks wait for a plan, so all cuts together look at no more sequences than this, or only one cut is made.
MOST = 8_000
#: How many numbers of micro-batches are tried, from the least that hold all tokens.
NUMBERS = 3


@dataclass(slots=True)
class Subgroup:
    """So many ranks that share sequences, with the tokens of all these and the picoseconds that they take."""

    size: int
    indices: list[int]
    tokens: int
    load: int

    def add(self, index: int, length: int) -> None:
        """Add a sequence of `length` tokens."""
        self.indices.append(index)
        self.tokens += length
        self.load += sequence_cost(length, self.size)


#: The micro-batches of a step, each with its subgroups in falling order of size.
Step = list[list[Subgroup]]


def plan_step(lengths: Sequence[int], ranks: int, cap: int, budget: int) -> list[MicroBatch]:
    """Plan the micro-batches of a step.

    Args:
        lengths: Tokens of each sequence, at least one sequence.
        ranks: W, the number of data parallel ranks, a power of two.
        cap: Tokens of one sequence that a rank can hold (`max_seqlen_per_dp_cp_rank`).
        budget: Tokens of a whole micro-batch that a rank can hold (`max_token_len_per_gpu`).

    Returns:
        Micro-batches in which each sequence is once, no rank is without work, and no subgroup of C ranks has
        more than C times the budget.

    Raises:
        ValueError: All ranks together cannot hold the longest sequence, there is none, or W is no power of
            two.

    """
    _check(lengths, ranks, cap)
    if budget < 1 or max(lengths) > ranks * budget:
        raise ValueError(
            f"a sequence of {max(lengths)} tokens is too long for a micro-batch: W={ranks} data parallel "
            f"ranks hold max_token_len_per_gpu={budget} tokens each. Raise max_token_len_per_gpu, use more "
            "data parallel ranks, or shorten or drop the sequence."
        )
    return _placed(min(_cuts(lengths, ranks, min(cap, budget), budget), key=takes), ranks)


def plan_mixed(lengths: Sequence[int], ranks: int, cap: int, budget: int | None = None) -> Plan:
    """Plan a micro-batch whose sequences are given. Arguments and errors are as in `plan_step`.

    The budget may be unlimited. If no plan with several sizes holds it, the plan is that of `plan_uniform`.
    """
    _check(lengths, ranks, cap)
    most = max(1, sum(lengths)) if budget is None else budget
    # What all ranks together do not hold is held by no plan.
    if most >= 1 and sum(lengths) <= ranks * most:
        cuts = [step for step in _cuts(lengths, ranks, min(cap, most), most) if len(step) == 1]
        if cuts:
            ((_, plan),) = _placed(min(cuts, key=takes), ranks)
            return plan
    return plan_uniform(lengths, ranks, cap, budget)


def takes(step: Step) -> int:
    """Return how many picoseconds a step takes by the model."""
    return sum(max(member.load for member in members) for members in step)


def smallest_size(length: int, room: int) -> int:
    """Return the smallest power of two of ranks, with room for `room` tokens each, that hold a sequence."""
    return 1 << max(0, -(-length // room) - 1).bit_length()


def windows(lengths: Sequence[int], ranks: int, room: int, budget: int, least: int = 1) -> Step:
    """Cut a mini-batch into micro-batches of sequences of similar length.

    The longest that are left open a micro-batch, one to a subgroup, each in the smallest that holds it.
    Powers of two in falling order fill the ranks. The room that is left goes to sequences that need as many
    ranks, and then to any, until a subgroup takes as long as the slowest.

    Args:
        lengths: Tokens of each sequence; the ranks together have room for any.
        ranks: W, a power of two.
        room: Tokens of one sequence that a rank holds.
        budget: Tokens of a micro-batch that a rank holds, at least `room`.
        least: No subgroup has fewer ranks.

    """
    rising = sorted(range(len(lengths)), key=lengths.__getitem__)
    sorted_lengths = [lengths[index] for index in rising]
    found = []
    while rising:
        members: list[Subgroup] = []
        free = ranks
        while rising and free:
            index, length = rising.pop(), sorted_lengths.pop()
            size = max(least, smallest_size(length, room))
            members.append(_subgroup(size, [index], lengths))
            free -= size
        while free:  # there is no sequence for these ranks: they help those with most to do
            member = max((one for one in members if one.size <= free), key=lambda one: one.load)
            free -= member.size
            members[members.index(member)] = _subgroup(2 * member.size, member.indices, lengths)
        members.sort(key=lambda member: -member.size)
        found.append(members)
        # Often there is no room for even the shortest.
        if rising and any(one.size * budget - one.tokens >= sorted_lengths[0] for one in members):
            _fill(members, rising, sorted_lengths, room, budget, least)
            _fill(members, rising, sorted_lengths, room, budget, None)
    return found


def equal_parts(lengths: Sequence[int], ranks: int, size: int, budget: int) -> Step:
    """Cut a mini-batch into few micro-batches of subgroups of one size, with parts of about equal cost.

    Empty if no way was found. Lengths, ranks and budget are as in `windows`.
    """
    beside = ranks // size
    costs = [sequence_cost(length, size) for length in lengths]
    fewest = max(1, -(-sum(lengths) // (ranks * budget)))
    for number in range(fewest, fewest + NUMBERS):
        try:
            parts = capped_partitions(lengths, number * beside, size * budget, costs=costs)
        except ValueError:  # no way was found, or there are too few sequences
            continue
        # From the costliest to the cheapest, so neighbours are alike.
        members = sorted((_subgroup(size, part, lengths) for part in parts), key=lambda one: -one.load)
        return [members[first : first + beside] for first in range(0, len(members), beside)]
    return []


def _check(lengths: Sequence[int], ranks: int, cap: int) -> None:
    if not lengths:
        raise ValueError("a micro-batch without sequences cannot be split")
    if ranks & (ranks - 1):
        raise ValueError(
            f"OVERLAY_DCP=mixed takes a power of two of data parallel ranks, not W={ranks}: set it to uniform"
        )
    check_longest(lengths, ranks, cap)


def _cuts(lengths: Sequence[int], ranks: int, room: int, budget: int) -> Iterator[Step]:
    """Yield as many cuts as there is time for."""
    looks = MOST // len(lengths)
    yield windows(lengths, ranks, room, budget)
    sizes = allowed_sizes(ranks)
    if looks > 2 * len(sizes):
        fitting = [size for size in sizes if size * room >= max(lengths)]
        yield from filter(None, (equal_parts(lengths, ranks, size, budget) for size in fitting))
        if whole := equal_parts(lengths, ranks, ranks, budget):
            yield [_best_size(lengths, member.indices, ranks, room, budget) for (member,) in whole]
    needed = smallest_size(min(lengths), room)
    for size in [size for size in sizes if size > needed][:looks]:
        yield windows(lengths, ranks, room, budget, size)


def _subgroup(size: int, indices: Sequence[int], lengths: Sequence[int]) -> Subgroup:
    made = Subgroup(size, [], 0, start_cost(size))
    for index in indices:
        made.add(index, lengths[index])
    return made


def _fill(
    members: list[Subgroup],
    rising: list[int],
    sorted_lengths: list[int],
    room: int,
    budget: int,
    least: int | None,
) -> None:
    """Give the subgroups of a micro-batch what else they have room for, and take it off what is left.

    Args:
        members: The subgroups.
        rising: What is left, from the shortest to the longest.
        sorted_lengths: Their tokens.
        room: As in `windows`.
        budget: As in `windows`.
        least: As in `windows`: a subgroup gets only what needs so many ranks. `None`: any that end in time.

    """
    # The first that is full says how long the others may take.
    limit = max(one.load for one in members) if least is None else None
    heap = [(member.load, place) for place, member in enumerate(members)]
    heapify(heap)
    while heap and rising:
        load, place = heap[0]
        member = members[place]
        size = member.size
        # What is left is no longer than what opened the subgroup, for which its ranks have room.
        fitting = bisect_right(sorted_lengths, size * budget - member.tokens) - 1
        if limit is not None and fitting >= 0 and load + sequence_cost(sorted_lengths[fitting], size) > limit:
            cost = partial(sequence_cost, size=size)
            fitting = bisect_right(sorted_lengths, limit - load, 0, fitting, key=cost) - 1
        if fitting < 0 or (
            least is not None and size > max(least, smallest_size(sorted_lengths[fitting], room))
        ):
            heappop(heap)
            limit = limit or max(one.load for one in members)
            continue
        member.add(rising.pop(fitting), sorted_lengths.pop(fitting))
        heapreplace(heap, (member.load, place))


def _best_size(
    lengths: Sequence[int], part: Sequence[int], ranks: int, room: int, budget: int
) -> list[Subgroup]:
    """Return the fastest subgroups of one size for a micro-batch that all ranks together hold."""
    falling = sorted(part, key=lambda index: (-lengths[index], index))
    found = []
    for size in allowed_sizes(ranks):
        if size * room < lengths[falling[0]] or ranks // size > len(part):
            continue
        members = [_subgroup(size, [], lengths) for _ in range(ranks // size)]
        heap = [(0, place) for place in range(len(members))]
        for index in falling:
            _, place = heap[0]
            members[place].add(index, lengths[index])
            heapreplace(heap, (members[place].load, place))
        if all(one.indices and one.tokens <= size * budget for one in members):
            found.append(members)
    return min(found, key=lambda members: max(one.load for one in members))


def _placed(step: Step, ranks: int) -> list[MicroBatch]:
    """Give subgroups their ranks: those with most to do where there was least to do before.

    That makes no micro-batch shorter. It is for ranks that do not wait for each other between micro-batches.
    """
    busy = [0] * ranks
    found: list[MicroBatch] = []
    for members in step:
        indices = sorted(index for member in members for index in member.indices)
        number = {index: place for place, index in enumerate(indices)}
        taken = [False] * ranks
        plan = []
        # Falling sizes: whoever takes more ranks is served before, so what is free is whole blocks of a size.
        for size, alike in groupby(members, key=lambda member: member.size):
            free = [start for start in range(0, ranks, size) if not taken[start]]
            until = {start: max(busy[start : start + size]) for start in free}
            free.sort(key=until.__getitem__)
            for start, member in zip(free, sorted(alike, key=lambda one: -one.load), strict=False):
                plan.append((start, size, tuple(sorted(number[index] for index in member.indices))))
                taken[start : start + size] = [True] * size
                busy[start : start + size] = [until[start] + member.load] * size
        found.append((indices, tuple(sorted(plan))))
    return found
