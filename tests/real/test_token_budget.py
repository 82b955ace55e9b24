"""`verl.strict-token-budget` and `verl.fast-partitioner` on verl 0.6.1 to 0.9.1, each in its own process.

The judge is 0.9.1, which keeps the bound itself: it takes as many micro-batches as there, or fewer.
"""

from __future__ import annotations

import os
import random
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from token_budget_check import PATCHES

from overlay.patches.verl.strict_token_budget.contract import draw_case

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [
    pytest.mark.real,
    pytest.mark.by_source("verl.strict-token-budget", "verl.fast-partitioner", version="verl"),
]

SEED = os.environ.setdefault("OVERLAY_TEST_SEED", str(secrets.randbelow(2**31)))
COUNT = 300

JUDGE = "0.9.1"
AFFECTED = ("0.6.1", "0.7.0", "0.7.1", "0.8.0", "0.9.0")
GROUPED = AFFECTED[2:]
BUDGETS = (8, 32768)

on_all = pytest.mark.parametrize("version", [*AFFECTED, JUDGE])
on_affected = pytest.mark.parametrize("version", AFFECTED)


@pytest.fixture
def find(
    release: Callable[[str], Path], findings: Callable[..., dict[str, Any]]
) -> Callable[[str], dict[str, Any]]:
    """Return the function that says what `token_budget_check.py` found on a release."""

    def get(version: str) -> dict[str, Any]:
        folder = release(f"verl=={version}")
        print(f"seed {SEED}")
        found = findings(folder, "token_budget_check.py", SEED, str(COUNT))
        assert Path(found["released"]["path"]).is_relative_to(folder)
        return found

    return get


def cases() -> list[dict[str, Any]]:
    draw = random.Random(SEED)
    return [draw_case(draw) for _ in range(COUNT)]


def pairs(case_results: list[Any], other: list[Any]) -> list[tuple[dict[str, Any], Any, Any]]:
    """Return (case, result, other result) of the cases that a release knows the arguments of."""
    drawn = cases()
    assert len(case_results) == len(other) == len(drawn)
    return [
        (case, result, against)
        for case, result, against in zip(drawn, case_results, other, strict=True)
        if result is not None
    ]


# --- without overlay ---


@on_affected
def test_upstream_exceeds_the_bound(find: Callable[[str], dict[str, Any]], version: str) -> None:
    # Why the patch is there: eight samples of 7 tokens with a limit of 8, sixteen of 30,720 with 32,768.
    small, large = find(version)["released"]["issue"]
    assert max(map(len, small["indices"])) * 7 == 14
    assert max(map(len, large["indices"])) * 30720 == 61440


# --- with overlay ---


@on_all
def test_the_patches_were_in_place(find: Callable[[str], dict[str, Any]], version: str) -> None:
    strict = "skipped" if version == JUDGE else "applied"
    states = find(version)["states"]
    assert [states[patch] for patch in PATCHES] == [strict, "applied"]


@on_affected
def test_micro_batches_come_in_the_order_that_was_asked_for(
    find: Callable[[str], dict[str, Any]], version: str
) -> None:
    for case, result, _ in pairs(*[find(version)["overlay"]["results"]] * 2):
        if "error" in result:
            continue
        work = [24576 * length + length**2 for length in case["lengths"]]
        costs = [sum(work[sample] for sample in samples) for samples in result["indices"]]
        if case["arguments"].get("use_dynamic_bsz_balance", True):
            # The smallest at both ends.
            middle = (len(costs) + 1) // 2
            assert costs[:middle] == sorted(costs[:middle])
            assert costs[middle:] == sorted(costs[middle:], reverse=True)
        else:
            assert costs == sorted(costs, reverse=True)


@on_affected
def test_what_cannot_be_divided_says_why(find: Callable[[str], dict[str, Any]], version: str) -> None:
    errors = 0
    for case, result, _ in pairs(*[find(version)["overlay"]["results"]] * 2):
        if "indices" in result:
            continue
        errors += 1
        assert {"TokenBudgetError", "AssertionError", "ValueError"} <= set(result["error"]), result
        arguments, message = case["arguments"], result["message"]
        size, cap = arguments.get("force_group_size", 1), arguments["max_token_len"]
        longest = max(case["lengths"]) if case["width"] is None else case["width"]
        if longest > cap:
            assert f"a sample of {longest} tokens, padding included, is over max_token_len={cap}" in message
        elif len(case["lengths"]) % size:
            assert f"{len(case['lengths'])} samples do not divide" in message
            assert f"force_group_size={size}" in message
        else:
            groups = len(case["lengths"]) // size
            assert f"only {groups} groups of {size}" in message
            divisor, least = (arguments.get(n, 1) for n in ("num_batches_divided_by", "min_num_micro_batch"))
            assert divisor > 1 or least > groups, (case, message)
    assert errors > COUNT // 20


@on_all
def test_the_workers_of_the_release_get_it(find: Callable[[str], dict[str, Any]], version: str) -> None:
    ours, released = (find(version)[mode]["workers"] for mode in ("overlay", "released"))
    assert ours["prepare_dynamic_batch"] == [7] * 8
    assert ("skipped" in ours) == (version in ("0.6.1", "0.7.0"))
    if "skipped" not in ours:
        assert ours["dynamic"] == [7] * 8
        assert (14 in released["dynamic"]) == (version != JUDGE)


@pytest.mark.parametrize("version", [*GROUPED, JUDGE])
def test_static_batch_sizes_are_left_alone(find: Callable[[str], dict[str, Any]], version: str) -> None:
    ours, released = (find(version)[mode]["workers"] for mode in ("overlay", "released"))
    assert ours["static rows"] == released["static rows"] == [[0, 1], [2, 3], [4, 5], [6, 7]]
