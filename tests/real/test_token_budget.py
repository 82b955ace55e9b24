"""What the contract of `verl.strict-token-budget` leaves out: the order, the words, and verl's workers.

Each release of verl from 0.6.1 to 0.9.1 in a process of its own. 0.9.1 keeps the bound itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from checks import SEED
from token_budget_check import PATCHES

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [
    pytest.mark.real,
    pytest.mark.by_variant("verl.strict-token-budget", "verl.fast-partitioner", version="verl"),
]

COUNT = 300

AFFECTED = ("0.6.1", "0.7.0", "0.7.1", "0.8.0", "0.9.0")
CURED = "0.9.1"

on_affected = pytest.mark.parametrize("version", AFFECTED)


@pytest.fixture
def found(
    version: str, release: Callable[[str], Path], findings: Callable[..., dict[str, Any]]
) -> dict[str, Any]:
    """What `token_budget_check.py` found on a release."""
    folder = release(f"verl=={version}")
    print(f"seed {SEED}")
    report = findings(folder, "token_budget_check.py", SEED, str(COUNT))
    assert Path(report["path"]).is_relative_to(folder)
    strict = "skipped" if version == CURED else "applied"
    assert [report["states"][patch] for patch in PATCHES] == [strict, "applied"]
    return report


@on_affected
def test_upstream_exceeds_the_bound(found: dict[str, Any]) -> None:
    # Why the patch is there: eight samples of 7 tokens with a limit of 8, sixteen of 30,720 with 32,768.
    small, large = found["issue"]
    assert max(map(len, small["indices"])) * 7 == 14
    assert max(map(len, large["indices"])) * 30720 == 61440


@on_affected
def test_micro_batches_come_in_the_order_that_was_asked_for(found: dict[str, Any]) -> None:
    for case, result in found["cases"]:
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
def test_what_cannot_be_divided_says_why(found: dict[str, Any]) -> None:
    errors = 0
    for case, result in found["cases"]:
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


@pytest.mark.parametrize("version", [*AFFECTED, CURED])
def test_the_workers_of_the_release_get_it(found: dict[str, Any], version: str) -> None:
    ours, released = found["overlay"], found["released"]
    assert ours["prepare_dynamic_batch"] == [7] * 8
    assert ("skipped" in ours) == (version in ("0.6.1", "0.7.0"))
    if "skipped" not in ours:
        assert ours["dynamic"] == [7] * 8
        assert (14 in released["dynamic"]) == (version != CURED)
        # Static batch sizes are left alone.
        assert ours["static rows"] == released["static rows"] == [[0, 1], [2, 3], [4, 5], [6, 7]]
