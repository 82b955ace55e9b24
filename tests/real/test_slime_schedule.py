"""`capped-partitions` in the real `build_dp_schedule` of slime 0.3 and of miles, and what 0.3.0 does alone.

With rollouts of a realistic size, which the contract leaves out. Each revision runs once, in a process of its
own with that revision first on the path; the tests ask what was found there.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from checks import SEED

from overlay.compat.slime_on_cpu.schedules import broken, over, parts_of

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.real


#: With `--balance-by-flops`: the tag, slime's main as of 21 August 2026, and its fork.
BY_FLOPS = ("slime==v0.3.1", "slime main", "miles main")
#: Of `cases` of `schedules`: samples without a token, which slime cannot cut in two; 512 samples
#: of up to 16,384 tokens on 8 ranks.
ZERO = 7
LARGE = range(8, 12)


@pytest.fixture
def found(
    name: str, listed: Callable[[str], Path], findings: Callable[..., dict[str, Any]]
) -> dict[str, Any]:
    """What was found on one revision."""
    folder, package = listed(name), name[:5]
    report = findings(folder, "slime_schedule_check.py", SEED, package)
    assert Path(report["path"]).is_relative_to(folder)
    applied = "skipped" if name == "slime==v0.3.0" else "applied"
    assert report["states"].items() >= {f"{package}.capped-partitions": applied}.items()
    return report


def costs(schedule: dict[str, Any], weights: list[float]) -> list[float]:
    """Return the sum of each micro-batch, of operations or tokens."""
    return [sum(weights[index] for index in part) for part in parts_of(schedule)]


@pytest.mark.parametrize("name", BY_FLOPS)
@pytest.mark.parametrize("ranks", ["by FLOPs", "by FLOPs, ranks too"])
def test_every_micro_batch_holds_the_budget(found: dict[str, Any], ranks: str) -> None:
    plain_runs = found["plain"]
    for given, ours, plain, tokens in zip(
        found["cases"], found["overlay"][ranks], plain_runs[ranks], plain_runs["by tokens"], strict=True
    ):
        if "error" in ours:
            # Fewer samples than the ranks, or than a multiple of the group.
            assert ours["error"] == "AssertionError", (SEED, given, ours)
            assert "alignment threshold" in ours["message"] or "at least one sample" in ours["message"]
            assert "error" in plain or over(given, plain)
        elif "error" not in tokens:  # where packing under the budget stops the job, none holds it
            assert not broken(given, ours), (SEED, given, broken(given, ours))


@pytest.mark.parametrize("name", BY_FLOPS)
def test_it_takes_no_more_micro_batches_than_packing_by_tokens(found: dict[str, Any]) -> None:
    compared = 0
    for given, ours, plain, tokens in zip(
        found["cases"],
        found["overlay"]["by FLOPs"],
        found["plain"]["by FLOPs"],
        found["plain"]["by tokens"],
        strict=True,
    ):
        if "error" in tokens or "error" in plain or not over(given, plain):
            continue
        compared += 1
        assert len(list(parts_of(ours))) <= len(list(parts_of(tokens))), (SEED, given)
    assert compared > len(LARGE)


@pytest.mark.parametrize("name", BY_FLOPS)
def test_flops_stay_balanced(found: dict[str, Any]) -> None:
    for index in LARGE:
        ours, plain, tokens = (
            costs(found[state][mode][index], found["flops"][index])
            for state, mode in (("overlay", "by FLOPs"), ("plain", "by FLOPs"), ("plain", "by tokens"))
        )
        # The most is that of the longest sample or close to it, with a budget and without.
        assert max(ours) <= max(tokens)
        assert max(ours) <= 1.05 * max(plain)
        assert min(ours) > min(tokens)
        assert min(ours) > 0.7 * sum(ours) / len(ours)


@pytest.mark.parametrize("name", BY_FLOPS)
def test_upstream_alone_exceeds_the_budget(found: dict[str, Any]) -> None:
    for index in LARGE:
        assert over(found["cases"][index], found["plain"]["by FLOPs"][index])
    assert broken(found["cases"][ZERO], found["plain"]["by FLOPs"][ZERO]) == ["an empty micro-batch"]


@pytest.mark.parametrize("name", ["slime==v0.3.0"])
def test_slime_0_3_0_holds_the_budget_and_does_not_balance(found: dict[str, Any]) -> None:
    # Why the patch is not needed there.
    for index, (given, plain) in enumerate(zip(found["cases"], found["plain"]["by tokens"], strict=True)):
        expected = ["an empty micro-batch"] if index == ZERO else []
        assert "error" in plain or broken(given, plain) == expected, (SEED, given)
    for index in LARGE:
        tokens = costs(found["plain"]["by tokens"][index], found["cases"][index]["lengths"])
        assert min(tokens) < 0.75 * sum(tokens) / len(tokens)
