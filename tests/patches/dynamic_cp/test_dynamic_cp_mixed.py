"""Plans with several context parallel sizes: what they promise, on drawn lengths, and beside brute force."""

from __future__ import annotations

import itertools
import json
import os
import random
import secrets
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from overlay.patches._dynamic_cp import cost
from overlay.patches._dynamic_cp.mixed import (
    equal_parts,
    plan_mixed,
    plan_step,
    smallest_size,
    takes,
)
from overlay.patches._dynamic_cp.plan import allowed_sizes, check_plan, plan_uniform

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from overlay.patches._dynamic_cp.plan import Plan

RANKS = st.sampled_from([1, 2, 4, 8, 16])
CAP = 512
LENGTHS = st.lists(st.integers(0, CAP) | st.integers(0, 16 * CAP), min_size=1, max_size=60)


def fitting(lengths: list[int], ranks: int, room: int = CAP) -> list[int]:
    """Return the lengths, cut to what all ranks hold."""
    return [min(length, ranks * room) for length in lengths]


def slowest(plan: Plan, lengths: Sequence[int]) -> int:
    """Return the picoseconds of the slowest subgroup of a micro-batch."""
    return max(
        cost.start_cost(size) + sum(cost.sequence_cost(lengths[index], size) for index in indices)
        for _, size, indices in plan
    )


@settings(deadline=None)
@given(LENGTHS, RANKS, st.integers(CAP // 2, 4 * CAP))
@example([0], 16, CAP)
@example([CAP] * 60, 1, CAP)
@example([16 * CAP] * 3, 16, CAP)
@example([8 * CAP, 1], 16, CAP)
def test_a_step(lengths: list[int], ranks: int, budget: int) -> None:
    lengths = fitting(lengths, ranks, min(CAP, budget))
    step = plan_step(lengths, ranks, CAP, budget)
    assert sorted(itertools.chain.from_iterable(indices for indices, _ in step)) == list(range(len(lengths)))
    for indices, plan in step:
        assert indices == sorted(indices)
        check_plan(plan, len(indices), ranks)
        for _, size, places in plan:
            tokens = [lengths[indices[place]] for place in places]
            assert max(tokens) <= size * CAP
            assert sum(tokens) <= size * budget


@settings(deadline=None)
@given(LENGTHS, RANKS, st.none() | st.integers(CAP // 2, 4 * CAP))
@example([0], 16, None)
@example([CAP] * 60, 2, CAP)
@example([3, 4], 2, 0)
def test_a_micro_batch(lengths: list[int], ranks: int, budget: int | None) -> None:
    lengths = fitting(lengths, ranks)
    plan = plan_mixed(lengths, ranks, CAP, budget)
    check_plan(plan, len(lengths), ranks)
    assert all(lengths[index] <= size * CAP for _, size, indices in plan for index in indices)
    uniform = plan_uniform(lengths, ranks, CAP, budget)
    if budget is not None and holds(uniform, lengths, budget):
        assert holds(plan, lengths, budget)


def holds(plan: Plan, lengths: Sequence[int], budget: int) -> bool:
    return all(sum(lengths[index] for index in indices) <= size * budget for _, size, indices in plan)


@settings(deadline=None)
@given(LENGTHS, RANKS)
def test_no_step_is_longer_than_one_of_equal_parts(lengths: list[int], ranks: int) -> None:
    lengths = fitting(lengths, ranks)
    took = sum(
        slowest(plan, [lengths[index] for index in indices])
        for indices, plan in plan_step(lengths, ranks, CAP, CAP)
    )
    for size in allowed_sizes(ranks):
        if max(lengths) <= size * CAP and (step := equal_parts(lengths, ranks, size, CAP)):
            assert took <= takes(step)


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_the_smallest_size_is_the_smallest(length: int, room: int) -> None:
    size = smallest_size(length, room)
    assert size * room >= length
    assert size == 1 or size // 2 * room < length


def test_a_step_of_equal_subgroups_is_none_of_too_few_sequences() -> None:
    assert equal_parts([5, 5, 5], 8, 2, 100) == []
    step = equal_parts([5, 5, 5, 5], 8, 2, 100)
    assert [[member.size for member in members] for members in step] == [[2, 2, 2, 2]]


def all_plans(count: int, ranks: int) -> Iterator[Plan]:
    """Yield every plan there is."""

    def cut(start: int, size: int) -> Iterator[list[tuple[int, int]]]:
        yield [(start, size)]
        if size > 1:
            half = size // 2
            for left in cut(start, half):
                for right in cut(start + half, half):
                    yield left + right

    for blocks in cut(0, ranks):
        for homes in itertools.product(range(len(blocks)), repeat=count):
            members = [tuple(i for i in range(count) if homes[i] == home) for home in range(len(blocks))]
            if all(members):
                yield tuple((*block, part) for block, part in zip(blocks, members, strict=True))


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_micro_batch_is_near_the_best_there_is(ranks: int) -> None:
    seed = os.environ.get("OVERLAY_TEST_SEED") or str(secrets.randbelow(2**31))
    print(f"OVERLAY_TEST_SEED={seed}")
    draw = random.Random(f"{seed}/{ranks}")
    ratios = []
    for _ in range(200):
        lengths = [min(4096 * ranks, round(draw.lognormvariate(8, 1))) for _ in range(draw.randint(1, 5))]
        best = min(
            slowest(plan, lengths)
            for plan in all_plans(len(lengths), ranks)
            if all(lengths[index] <= size * 4096 for _, size, part in plan for index in part)
        )
        ratios.append(slowest(plan_mixed(lengths, ranks, 4096), lengths) / best)
    assert max(ratios) <= 1.05, f"seed {seed}"
    assert sum(ratio == 1 for ratio in ratios) >= 0.9 * len(ratios), f"seed {seed}"


def test_every_process_makes_the_same_plan() -> None:
    draw = random.Random(7)
    lengths = [min(16384, round(draw.lognormvariate(8, 1))) for _ in range(40)]
    program = (
        "import json, sys; from overlay.patches._dynamic_cp.mixed import plan_step;"
        "print(json.dumps(plan_step(json.loads(sys.argv[1]), 8, 4096, 4096)))"
    )
    found = [
        subprocess.run(
            [sys.executable, "-c", program, json.dumps(lengths)],
            env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert found[0] == found[1]
    assert json.loads(found[0]) == json.loads(json.dumps(plan_step(lengths, 8, 4096, 4096)))


@pytest.mark.parametrize("plan", [plan_mixed, lambda lengths, ranks, cap: plan_step(lengths, ranks, cap, 9)])
def test_what_cannot_be_planned_is_an_error(plan: object) -> None:
    assert callable(plan)
    with pytest.raises(ValueError, match="without sequences"):
        plan([], 4, 8)
    with pytest.raises(ValueError, match=r"power of two.*not W=6.*uniform"):
        plan([5], 6, 8)
    with pytest.raises(ValueError, match="33 tokens is too long for dynamic context parallelism: W=4"):
        plan([33], 4, 8)
    with pytest.raises(ValueError, match="max_seqlen_per_dp_cp_rank must be a positive"):
        plan([3], 4, 0)


def test_a_sequence_over_the_budget_of_all_ranks_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"37 tokens is too long for a micro-batch.*max_token_len_per_gpu=9"):
        plan_step([37, 2], 4, 100, 9)
    with pytest.raises(ValueError, match="max_token_len_per_gpu=0"):
        plan_step([0], 4, 100, 0)
