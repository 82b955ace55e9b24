"""The plan of a micro-batch, and the plan that has one context parallel size for all of it.

A plan says which neighbouring ranks form a subgroup and which sequences a subgroup computes, all its ranks
together. It is made of plain tuples, so that it travels with the data of a micro-batch: one entry for each
subgroup, `(start, size, indices)`, ascending by `start`.

* `start`: the first of the subgroup's data parallel ranks, a multiple of `size`.
* `size`: C, the ranks of the subgroup.
* `indices`: its sequences in the micro-batch, ascending, at least one.

Whatever makes a plan depends on nothing but its arguments: all ranks make it for themselves, and the same.
"""

from collections.abc import Sequence
from heapq import heapreplace

Plan = tuple[tuple[int, int, tuple[int, ...]], ...]


def allowed_sizes(ranks: int) -> tuple[int, ...]:
    """Return the sizes for which Megatron has groups: powers of two that divide W = `ranks`, and W."""
    powers = tuple(1 << bit for bit in range(ranks.bit_length()) if ranks % (1 << bit) == 0)
    return powers if powers[-1] == ranks else (*powers, ranks)


def check_longest(lengths: Sequence[int], ranks: int, cap: int) -> None:
    """Raise `ValueError` unless W ranks of `cap` tokens each can hold the longest sequence."""
    if cap < 1:
        raise ValueError(f"max_seqlen_per_dp_cp_rank must be a positive number of tokens, not {cap}")
    if max(lengths) > ranks * cap:
        raise ValueError(
            f"a sequence of {max(lengths)} tokens is too long for dynamic context parallelism: W={ranks} "
            f"data parallel ranks hold max_seqlen_per_dp_cp_rank={cap} tokens each, {ranks * cap} together. "
            "Raise max_seqlen_per_dp_cp_rank, use more data parallel ranks, or shorten or drop the sequence."
        )


def check_plan(plan: Plan, count: int, ranks: int) -> None:
    """Raise `ValueError` unless a plan gives every rank work and computes each of `count` sequences once."""
    sizes = allowed_sizes(ranks)
    following = 0
    for start, size, indices in plan:
        if start != following or size not in sizes or start % size or not indices:
            raise ValueError(f"{plan} is no plan for {ranks} ranks: wrong at rank {following}")
        following += size
    if following != ranks or sorted(index for _, _, part in plan for index in part) != list(range(count)):
        raise ValueError(f"{plan} does not have each of {ranks} ranks and {count} sequences once")


def part_of(plan: Plan, rank: int) -> tuple[int, int, tuple[int, ...]]:
    """Return the entry of the subgroup that a rank is in."""
    return next(entry for entry in reversed(plan) if entry[0] <= rank)


def plan_uniform(lengths: Sequence[int], ranks: int, cap: int, budget: int | None = None) -> Plan:
    """Plan a micro-batch with subgroups of one size, balanced by tokens.

    Args:
        lengths: Tokens of each sequence, at least one sequence.
        ranks: W, the number of data parallel ranks.
        cap: Tokens of one sequence that a rank can hold (`max_seqlen_per_dp_cp_rank`).
        budget: Tokens of a whole micro-batch that a rank can hold, if that is limited. It is held wherever
            a plan of this kind holds it.

    Returns:
        A plan with the smallest C whose ranks can hold the longest sequence, whose W / C subgroups all get a
        sequence, and with which no subgroup exceeds its budget. If no size holds the budget, C is W, which
        spreads the load best.

    Raises:
        ValueError: No subgroup can hold the longest sequence, or there is none.

    """
    if not lengths:
        raise ValueError("a micro-batch without sequences cannot be split")
    check_longest(lengths, ranks, cap)
    longest, tokens = max(lengths), sum(lengths)
    falling = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    for size in allowed_sizes(ranks):
        if size * cap < longest or ranks // size > len(lengths):
            continue
        if budget is not None and (size * budget < longest or ranks * budget < tokens):
            continue
        groups = _balance(lengths, falling, ranks // size)
        if budget is None or all(sum([lengths[i] for i in group]) <= size * budget for group in groups):
            return tuple((place * size, size, group) for place, group in enumerate(groups))
    return ((0, ranks, tuple(range(len(lengths)))),)


def _balance(lengths: Sequence[int], falling: Sequence[int], count: int) -> tuple[tuple[int, ...], ...]:
    """Deal the sequences, in falling order, out to `count` groups: each to where there are least tokens."""
    groups: list[list[int]] = [[] for _ in range(count)]
    # The number of sequences breaks ties, so that no group stays empty even if lengths are 0.
    heap = [(0, 0, group) for group in range(count)]
    for index in falling:
        load, number, lightest = heap[0]
        groups[lightest].append(index)
        heapreplace(heap, (load + lengths[index], number + 1, lightest))
    return tuple(tuple(sorted(group)) for group in groups)
