"""`slime.fast-partitioner` in the real `slime.utils.seqlen_balancing`: the same partitions in less time."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import overlay

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.real, pytest.mark.by_source("slime.fast-partitioner", found="slime")]

SEED = os.environ.setdefault("OVERLAY_TEST_SEED", str(secrets.randbelow(2**31)))
PATCH = "slime.fast-partitioner"

#: The module has another text in each of these; main as of 21 August 2026 has that of v0.3.1.
RUN = ("v0.1.0", "v0.2.0", "v0.2.1", "v0.2.2", "v0.3.0", "624b824a898")
KNOWN = (*RUN, "v0.2.0.post1", "v0.2.3", "v0.2.4", "286750aa3", "8acc034bc", "v0.3.1")


@pytest.fixture(params=RUN)
def found(
    request: pytest.FixtureRequest, slime: Callable[[str], Path], findings: Callable[..., dict[str, Any]]
) -> dict[str, Any]:
    """What `slime_partitioner_check.py` found on one revision."""
    folder = slime(str(request.param))
    report = findings(folder, "slime_partitioner_check.py", SEED)
    assert Path(report["path"]).is_relative_to(folder)
    return report


def test_partitions_and_refusals_are_the_same(found: dict[str, Any]) -> None:
    assert found["states"].items() >= {PATCH: "applied"}.items()
    assert found["overlay"]["drawn"] == found["plain"]["drawn"], SEED
    assert found["overlay"]["odd"] == found["plain"]["odd"]
    assert any(isinstance(result, list) for result in found["plain"]["drawn"])
    assert any(isinstance(result, str) for result in found["plain"]["drawn"])


def grows(report: dict[str, Any]) -> float:
    """Return how much longer it takes to divide twice as many samples into twice as many parts."""
    fewer, more = report["calls"]
    return float(more / fewer)


def test_time_grows_with_the_samples(found: dict[str, Any]) -> None:
    assert grows(found["overlay"]) < 2.6
    assert found["overlay"]["calls"][1] < found["plain"]["calls"][1] / 10


@pytest.mark.xfail(strict=True, reason="once this passes, slime.fast-partitioner has had its day")
def test_upstream_alone_is_fast(found: dict[str, Any]) -> None:
    assert grows(found["plain"]) < 2.6


@pytest.mark.parametrize("revision", KNOWN)
def test_every_revision_is_known(slime: Callable[[str], Path], revision: str) -> None:
    plan = overlay.plan([PATCH], site=str(slime(revision)))
    verdict = next(verdict for verdict in plan.verdicts if verdict.patch == PATCH)
    assert verdict.verdict == "apply", verdict.reason
