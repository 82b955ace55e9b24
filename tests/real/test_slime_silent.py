"""What slime does wrong in silence, on each release that does: the contract of each patch, alone and with it.

Each revision is run once for all patches that are for it, in a process of its own with that revision first on
the path. `SLIME_REPO` names a repository of slime.
"""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING, Any

import pytest
from repetitions import source_of
from slime_silent_check import RAISED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Found = Callable[[str, str], list[str]]

SEED = os.environ.setdefault("OVERLAY_TEST_SEED", str(secrets.randbelow(2**31)))

#: After 0.3.1.
MAIN = "624b824a8"
V02 = ("v0.2.0", "v0.2.0.post1", "v0.2.1", "v0.2.2", "v0.2.3", "v0.2.4", "286750aa3")
ALL = ("v0.1.0", *V02, "v0.3.0", "v0.3.1")

#: The releases that a patch is for, and those that are cured.
AFFECTED: dict[str, tuple[str, ...]] = {
    "slime.eps-clip-c": ALL,
    "slime.value-temperature": V02,
    "slime.resumed-schedule": ("v0.2.2", "v0.2.3"),
    "slime.checkpoint-step": ("v0.2.3", "v0.2.4", "286750aa3", "v0.3.0", "v0.3.1"),
    "slime.teacher-temperature": ("v0.2.3", "v0.2.4", "286750aa3", "v0.3.0", "v0.3.1"),
    "slime.partial-rollout-budget": ("286750aa3", "v0.3.0", "v0.3.1"),
    "slime.group-timeouts": (*V02, "v0.3.0"),
    "slime.allgather-cp-models": ("v0.2.3", "v0.2.4", "286750aa3"),
    "slime.async-groups": ("v0.3.0", "v0.3.1"),
    "slime.tool-turn-mask": (*V02, "v0.3.0", "v0.3.1"),
    "slime.bridge-flags": ("v0.2.2", "v0.2.3", "v0.2.4", "286750aa3", "v0.3.0"),
    "slime.one-step-log-probs": ("v0.3.0", "v0.3.1", MAIN),
}
CURED: dict[str, tuple[str, ...]] = {
    "slime.eps-clip-c": (MAIN,),
    "slime.value-temperature": ("v0.3.0",),
    "slime.resumed-schedule": ("v0.2.1", "v0.2.4"),
    "slime.checkpoint-step": (MAIN,),
    "slime.teacher-temperature": (MAIN,),
    "slime.partial-rollout-budget": (MAIN,),
    "slime.group-timeouts": ("v0.3.1",),
    "slime.allgather-cp-models": ("v0.3.0",),
    "slime.async-groups": (MAIN,),
    "slime.tool-turn-mask": (MAIN,),
    "slime.bridge-flags": (),
    "slime.one-step-log-probs": ("v0.2.4", "286750aa3"),
}

pytestmark = pytest.mark.real


@pytest.fixture
def found(slime: Callable[[str], Path], findings: Callable[..., dict[str, Any]]) -> Found:
    """Return the function that says what the contract of a patch found on a revision: alone, and with it."""

    def get(patch: str, revision: str) -> list[str]:
        here = [name for name in AFFECTED if is_looked_at(name, revision)]
        asked = here if patch in here else [patch]
        return list(findings(slime(revision), "slime_silent_check.py", SEED, *asked)[patch])

    return get


def is_looked_at(patch: str, revision: str) -> bool:
    """Return whether the patch's tests run on a revision: by day, on the first that has its source."""
    revisions = (*AFFECTED[patch], *CURED.get(patch, ()))
    if revision not in revisions or not os.environ.get("TESTS_ONCE"):
        return revision in revisions
    earlier = revisions[: revisions.index(revision)]
    mine = source_of((patch,), "slime", revision)
    return all(source_of((patch,), "slime", other) != mine for other in earlier)


def by_source(patch: str) -> pytest.MarkDecorator:
    """Leave the test to the nightly run on a revision with the source of an earlier one."""
    return pytest.mark.by_source(patch, revision="slime")


@pytest.mark.parametrize(
    ("patch", "revision"),
    [
        pytest.param(patch, revision, marks=by_source(patch))
        for patch, revisions in AFFECTED.items()
        for revision in revisions
    ],
)
def test_with_the_patch_it_is_right(found: Found, patch: str, revision: str) -> None:
    assert found(patch, revision)[1] == "", SEED


def alone(patch: str) -> pytest.MarkDecorator:
    """Mark the removal test of a patch, which fails on each release that the patch is for."""
    wrong = pytest.mark.xfail(
        strict=True, raises=pytest.fail.Exception, reason=f"once this passes, {patch} has had its day"
    )
    needed = [pytest.param(revision, marks=[wrong, by_source(patch)]) for revision in AFFECTED[patch]]
    return pytest.mark.parametrize("revision", [*needed, *CURED.get(patch, ())])


def holds(said: str) -> None:
    """Fail if upstream alone is wrong; that a contract raised is an error of its own."""
    assert not said.startswith(RAISED), (SEED, said)
    if said:
        pytest.fail(said)


@alone("slime.eps-clip-c")
def test_upstream_alone_bounds_the_loss(found: Found, revision: str) -> None:
    holds(found("slime.eps-clip-c", revision)[0])


@alone("slime.value-temperature")
def test_upstream_alone_leaves_values_as_they_are(found: Found, revision: str) -> None:
    holds(found("slime.value-temperature", revision)[0])


@alone("slime.resumed-schedule")
def test_upstream_alone_resumes_the_schedule(found: Found, revision: str) -> None:
    holds(found("slime.resumed-schedule", revision)[0])


@alone("slime.checkpoint-step")
def test_upstream_alone_loads_each_from_its_own_step(found: Found, revision: str) -> None:
    holds(found("slime.checkpoint-step", revision)[0])


@alone("slime.teacher-temperature")
def test_upstream_alone_scores_the_teacher_like_the_student(found: Found, revision: str) -> None:
    holds(found("slime.teacher-temperature", revision)[0])


@alone("slime.partial-rollout-budget")
def test_upstream_alone_asks_for_the_tokens_that_are_left(found: Found, revision: str) -> None:
    holds(found("slime.partial-rollout-budget", revision)[0])


@alone("slime.group-timeouts")
def test_upstream_alone_makes_groups_as_they_were(found: Found, revision: str) -> None:
    holds(found("slime.group-timeouts", revision)[0])


@alone("slime.allgather-cp-models")
def test_upstream_alone_refuses_what_it_would_scramble(found: Found, revision: str) -> None:
    holds(found("slime.allgather-cp-models", revision)[0])


@alone("slime.async-groups")
def test_upstream_alone_trains_on_every_group(found: Found, revision: str) -> None:
    holds(found("slime.async-groups", revision)[0])


@alone("slime.tool-turn-mask")
def test_upstream_alone_renders_results_of_tools_as_one_turn(found: Found, revision: str) -> None:
    holds(found("slime.tool-turn-mask", revision)[0])


@alone("slime.bridge-flags")
def test_upstream_alone_hands_flags_to_the_bridge(found: Found, revision: str) -> None:
    holds(found("slime.bridge-flags", revision)[0])


@alone("slime.one-step-log-probs")
def test_upstream_alone_needs_no_log_probs_of_the_rollout(found: Found, revision: str) -> None:
    holds(found("slime.one-step-log-probs", revision)[0])
