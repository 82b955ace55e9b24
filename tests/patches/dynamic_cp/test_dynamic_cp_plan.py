"""Plans of dynamic context parallelism: pure arithmetic on lengths, held to its contract on drawn inputs."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from overlay.patches._dynamic_cp.plan import allowed_sizes, check_longest, check_plan, part_of, plan_uniform

RANKS = st.integers(min_value=1, max_value=64)
LENGTHS = st.lists(st.integers(min_value=0, max_value=2000), min_size=1, max_size=80)
CAPS = st.integers(min_value=1, max_value=3000)
BUDGETS = st.none() | st.integers(min_value=1, max_value=5000)


def plan_split(
    lengths: list[int] | tuple[int, ...], ranks: int, cap: int, budget: int | None = None
) -> tuple[int, tuple[tuple[int, ...], ...]]:
    """Return a uniform plan as its one size, and the sequences of each subgroup in the order of the ranks."""
    plan = plan_uniform(lengths, ranks, cap, budget)
    check_plan(plan, len(lengths), ranks)
    (size,) = {size for _, size, _ in plan}
    return size, tuple(indices for _, _, indices in plan)


@given(RANKS)
def test_allowed_sizes_are_the_dividing_powers_of_two_and_all_ranks(ranks: int) -> None:
    sizes = allowed_sizes(ranks)
    assert sizes[0] == 1
    assert sizes[-1] == ranks
    assert list(sizes) == sorted(set(sizes))
    assert all(ranks % size == 0 for size in sizes)
    assert {size for size in range(1, ranks) if ranks % size == 0 and size & (size - 1) == 0} <= set(sizes)
    assert all(size & (size - 1) == 0 for size in sizes[:-1])


@given(LENGTHS, RANKS, CAPS, BUDGETS)
@example([5, 4, 3, 4, 2], 4, 6, None)
@example([0, 0, 0], 2, 1, None)
@example([8] * 5, 4, 10, 10)
def test_a_plan_of_one_size(lengths: list[int], ranks: int, cap: int, budget: int | None) -> None:
    if max(lengths) > ranks * cap:
        with pytest.raises(ValueError, match="too long"):
            plan_split(lengths, ranks, cap, budget)
        return
    size, groups = plan_split(lengths, ranks, cap, budget)
    assert size in allowed_sizes(ranks)
    assert size * cap >= max(lengths)
    # Every sequence goes to one subgroup, and no subgroup stays empty.
    assert len(groups) == ranks // size
    assert all(groups)
    assert sorted(chain.from_iterable(groups)) == list(range(len(lengths)))
    assert all(list(group) == sorted(group) for group in groups)
    loads = [sum(lengths[index] for index in group) for group in groups]
    assert max(loads) - min(loads) <= max(lengths)
    if budget is None:
        # It is the smallest that holds the longest and leaves no subgroup empty.
        for smaller in allowed_sizes(ranks):
            if smaller < size:
                assert smaller * cap < max(lengths) or ranks // smaller > len(lengths)
    elif sum(lengths) <= ranks * budget:
        assert max(loads) <= size * budget
    elif max(loads) > size * budget:
        assert size == ranks
    assert plan_split(tuple(lengths), ranks, cap, budget) == (size, groups)


def test_plans_of_the_cases_that_were_measured() -> None:
    assert plan_split([5, 9, 4, 7, 3, 6, 8, 4], 4, 6)[0] == 2
    assert plan_split([5, 3, 4, 2, 3, 6, 6, 4], 4, 6)[0] == 1
    assert plan_split([20, 3], 4, 6) == (4, ((0, 1),))
    assert plan_split([5, 4, 3, 4, 2], 4, 6) == (1, ((0,), (1,), (3,), (2, 4)))


def test_the_longest_sequence_is_dealt_first() -> None:
    assert plan_split([1, 1, 1, 9], 2, 9) == (1, ((3,), (0, 1, 2)))


@pytest.mark.parametrize("cap", [0, -1])
def test_a_cap_must_be_positive(cap: int) -> None:
    with pytest.raises(ValueError, match=f"positive number of tokens, not {cap}"):
        check_longest([1], 2, cap)


def test_a_sequence_too_long_names_its_length_the_cap_and_the_way_out() -> None:
    with pytest.raises(ValueError, match=r"49 tokens.*W=8.*max_seqlen_per_dp_cp_rank=6.*48 together.*Raise"):
        check_longest([3, 49], 8, 6)
    check_longest([3, 48], 8, 6)


def test_a_micro_batch_without_sequences_is_an_error() -> None:
    with pytest.raises(ValueError, match="without sequences"):
        plan_split([], 2, 1)


MIXED = ((0, 2, (3,)), (2, 1, (0, 2)), (3, 1, (1,)))


def test_every_rank_finds_its_part() -> None:
    check_plan(MIXED, 4, 4)
    assert [part_of(MIXED, rank)[0] for rank in range(4)] == [0, 0, 2, 3]


@pytest.mark.parametrize(
    ("plan", "count", "ranks"),
    [
        (MIXED, 5, 4),  # a sequence is missing
        (MIXED, 4, 8),  # ranks are missing
        (((0, 2, (0,)), (2, 2, ())), 1, 4),  # ranks have no work
        (((0, 2, (0,)), (2, 2, (0,))), 1, 4),  # a sequence is computed twice
        (((0, 1, (0,)), (1, 2, (1,)), (3, 1, (2,))), 3, 4),  # Megatron has no group of the ranks 1 and 2
        (((0, 3, (0,)), (3, 1, (1,))), 2, 4),  # nor of three
        (((2, 2, (0,)), (0, 2, (1,))), 2, 4),  # not in order
        ((), 0, 4),
    ],
)
def test_what_is_no_plan_is_refused(plan: Any, count: int, ranks: int) -> None:
    with pytest.raises(ValueError, match=r"plan|does not have"):
        check_plan(plan, count, ranks)
