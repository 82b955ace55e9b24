"""Runs of verl's engine under plans of a case's own, instead of those that `verl.dynamic-cp-loss` makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from overlay.compat.cuda_on_cpu import replaced
from overlay.patches._dynamic_cp.plan import Plan, check_plan
from overlay.patches.verl.dynamic_cp_loss import fix as dynamic_cp_loss


def planned(
    make: Callable[[Sequence[int], int, int], Plan], run: Callable[..., Any], *arguments: Any, **settings: Any
) -> Callable[[], Any]:
    """Return a case that runs under other plans, and says which sizes they had.

    `make`: gets the lengths of the sequences, the number of ranks and the tokens that a rank can hold. `run`:
    what is run, and returns what it found. `arguments`: for it. `settings`: for it.
    """

    def case() -> Any:
        plans: list[list[int]] = []

        def noted(lengths: Sequence[int], ranks: int, cap: int, budget: int | None) -> Plan:
            del budget
            plan = make(lengths, ranks, cap)
            check_plan(plan, len(lengths), ranks)
            plans.append([size for _, size, _ in plan])
            return plan

        with replaced(dynamic_cp_loss, "plan_uniform", noted):
            found = run(*arguments, **settings)
        return {**found, "plans": plans}

    return case
