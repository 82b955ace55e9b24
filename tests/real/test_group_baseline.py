"""slime.group-baseline on slime's own rollout manager, in every release that has it, and as a Ray actor."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.real, pytest.mark.by_source("slime.group-baseline", revision="slime")]

SEED = os.environ.get("OVERLAY_TEST_SEED") or str(secrets.randbelow(2**31))
RELEASES = (
    "v0.2.0", "v0.2.0.post1", "v0.2.1", "v0.2.2", "v0.2.3", "v0.2.4", "286750aa3", "v0.3.0", "v0.3.1",
    "624b824a8",
)  # fmt: skip


@pytest.fixture
def found(
    revision: str, slime: Callable[[str], Path], findings: Callable[..., dict[str, Any]]
) -> dict[str, Any]:
    """What the check found on a release, with overlay and without."""
    print(f"OVERLAY_TEST_SEED={SEED}")
    return findings(slime(revision), "group_baseline_check.py", SEED)


@pytest.mark.parametrize("revision", RELEASES)
def test_rewards_are_normalised_by_prompt(found: dict[str, Any]) -> None:
    ours, released = found["overlay"], found["released"]
    assert ours["faults"] == []
    # Where slime's groups are the prompts, and where there is nothing else to go by.
    assert ours["whole"] == released["whole"]
    assert ours["nameless"] == released["nameless"]
    assert ours["theirs"]


@pytest.mark.parametrize(
    "revision",
    [
        pytest.param(
            revision,
            marks=pytest.mark.xfail(
                strict=True, reason="once this passes, slime.group-baseline has had its day"
            ),
        )
        for revision in ("v0.2.4", "v0.3.1", "624b824a8")
    ],
)
def test_upstream_alone_normalises_by_prompt(found: dict[str, Any]) -> None:
    assert found["released"]["faults"] == []


@pytest.mark.parametrize("revision", ["v0.2.4", "v0.3.1"])
def test_the_manager_does_so_as_an_actor_in_which_overlay_is_not_enabled(
    revision: str, slime: Callable[[str], Path], findings: Callable[..., dict[str, Any]]
) -> None:
    told = findings(slime(revision), "group_baseline_check.py", SEED, "ray")
    assert told["found"] == pytest.approx(told["wanted"], abs=1e-4)
