"""What planning costs: counted in lines that run, not in seconds, for few sequences and for thousands."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from counted import lines

from overlay.patches._dynamic_cp.mixed import plan_mixed, plan_step
from overlay.patches._dynamic_cp.plan import check_plan

if TYPE_CHECKING:
    from collections.abc import Callable

#: Lines of a plan. The planner of 0.1 ran tens of millions for 512 sequences.
MOST = 1_500_000
CAP = 4096
DRAWS: dict[str, Callable[[random.Random], float]] = {
    "uniform": lambda draw: draw.randint(1, 16384),
    "lognormal": lambda draw: draw.lognormvariate(7.8, 0.9),
    "pareto": lambda draw: 500 * draw.paretovariate(1.1),
    "equal": lambda _draw: 2048,
    "all ranks": lambda draw: draw.uniform(0.6, 1) * 64 * CAP,
    "zeros": lambda draw: draw.choice([0, 0, 300]),
}


def drawn(kind: str, count: int, ranks: int, cap: int = CAP) -> list[int]:
    draw = random.Random(f"{kind}/{count}")
    return [min(ranks * cap, round(DRAWS[kind](draw))) for _ in range(count)]


@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize(
    ("count", "ranks", "budget"),
    [(200, 64, CAP), (512, 8, CAP), (512, 64, 2**20), (2048, 4, CAP), (8192, 2, CAP), (8192, 64, 2**20)],
)
def test_a_step_of_many_sequences_costs_no_more_than_the_meter_allows(
    kind: str, count: int, ranks: int, budget: int
) -> None:
    lengths = drawn(kind, count, ranks)
    found = []
    assert lines(lambda: found.append(plan_step(lengths, ranks, CAP, budget))) <= MOST
    (step,) = found
    assert sorted(index for indices, _ in step for index in indices) == list(range(count))
    for indices, plan in step:
        check_plan(plan, len(indices), ranks)
        for _, size, places in plan:
            tokens = [lengths[indices[place]] for place in places]
            assert max(tokens) <= size * CAP
            assert sum(tokens) <= size * budget


@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize(("count", "ranks"), [(512, 8), (8192, 2), (8192, 64)])
def test_a_micro_batch_of_many_sequences_costs_no_more_than_the_meter_allows(
    kind: str, count: int, ranks: int
) -> None:
    lengths = drawn(kind, count, ranks)
    found = []
    assert lines(lambda: found.append(plan_mixed(lengths, ranks, CAP))) <= MOST
    check_plan(found[0], count, ranks)
