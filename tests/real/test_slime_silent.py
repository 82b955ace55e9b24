"""What slime does wrong in silence, or stops at, on each release that does: each contract, alone and patched.

`SLIME_REPO` names a repository of slime.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from contract_tests import SEED, Contracts, holds

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from contract_tests import Found

pytestmark = pytest.mark.real

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
    "slime.metrics": (*V02, "v0.3.0", "v0.3.1", MAIN),
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

CONTRACTS = Contracts("slime", AFFECTED, CURED)
alone = CONTRACTS.xfail_where_needed


@pytest.fixture
def found(slime: Callable[[str], Path], findings: Callable[..., dict[str, Any]]) -> Found:
    return CONTRACTS.finder(slime, findings)


@CONTRACTS.with_the_patch()
def test_with_the_patch_it_is_right(found: Found, patch: str, version: str) -> None:
    _, said, figures = found(patch, version)
    assert said == "", SEED
    # On slime's own code the patch knows that it was reached.
    assert json.loads(figures)["changed"] > 0, SEED


@alone("slime.eps-clip-c")
def test_upstream_alone_bounds_the_loss(found: Found, version: str) -> None:
    holds(found("slime.eps-clip-c", version)[0])


@alone("slime.value-temperature")
def test_upstream_alone_leaves_values_as_they_are(found: Found, version: str) -> None:
    holds(found("slime.value-temperature", version)[0])


@alone("slime.resumed-schedule")
def test_upstream_alone_resumes_the_schedule(found: Found, version: str) -> None:
    holds(found("slime.resumed-schedule", version)[0])


@alone("slime.checkpoint-step")
def test_upstream_alone_loads_each_from_its_own_step(found: Found, version: str) -> None:
    holds(found("slime.checkpoint-step", version)[0])


@alone("slime.teacher-temperature")
def test_upstream_alone_scores_the_teacher_like_the_student(found: Found, version: str) -> None:
    holds(found("slime.teacher-temperature", version)[0])


@alone("slime.partial-rollout-budget")
def test_upstream_alone_asks_for_the_tokens_that_are_left(found: Found, version: str) -> None:
    holds(found("slime.partial-rollout-budget", version)[0])


@alone("slime.group-timeouts")
def test_upstream_alone_makes_groups_as_they_were(found: Found, version: str) -> None:
    holds(found("slime.group-timeouts", version)[0])


@alone("slime.allgather-cp-models")
def test_upstream_alone_refuses_what_it_would_scramble(found: Found, version: str) -> None:
    holds(found("slime.allgather-cp-models", version)[0])


@alone("slime.async-groups")
def test_upstream_alone_trains_on_every_group(found: Found, version: str) -> None:
    holds(found("slime.async-groups", version)[0])


@alone("slime.tool-turn-mask")
def test_upstream_alone_renders_results_of_tools_as_one_turn(found: Found, version: str) -> None:
    holds(found("slime.tool-turn-mask", version)[0])


@alone("slime.bridge-flags")
def test_upstream_alone_hands_flags_to_the_bridge(found: Found, version: str) -> None:
    holds(found("slime.bridge-flags", version)[0])


@alone("slime.one-step-log-probs")
def test_upstream_alone_needs_no_log_probs_of_the_rollout(found: Found, version: str) -> None:
    holds(found("slime.one-step-log-probs", version)[0])


@alone("slime.metrics")
def test_upstream_alone_logs_what_patches_changed(found: Found, version: str) -> None:
    holds(found("slime.metrics", version)[0])
