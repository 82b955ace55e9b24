"""`verl.offload-shared-storage` on verl 0.8.0 to 0.9.1, each in its own process."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from overlay.patches.verl.offload_shared_storage import PATCH
from overlay.testing import assert_form

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.real

SEED = os.environ.setdefault("OVERLAY_TEST_SEED", str(secrets.randbelow(2**31)))
COUNT = 100

BEFORE = "0.8.0"
AFFECTED = ("0.9.0", "0.9.1")

on_all = pytest.mark.parametrize("version", [BEFORE, *AFFECTED])
on_affected = pytest.mark.parametrize("version", AFFECTED)


@pytest.fixture
def find(
    release: Callable[[str], Path], findings: Callable[..., dict[str, Any]]
) -> Callable[[str], dict[str, Any]]:
    """Return the function that says what `offload_check.py` found on a release."""

    def get(version: str) -> dict[str, Any]:
        folder = release(f"verl=={version}")
        print(f"seed {SEED}")
        found = findings(folder, "offload_check.py", SEED, str(COUNT))
        assert Path(found["path"]).is_relative_to(folder)
        return found

    return get


def losses(found: dict[str, Any]) -> list[int]:
    """Return the tensors that lost their values: with shared storages, and offloaded a second time."""
    return [found["lost"], found["again"]["lost"]]


@pytest.mark.parametrize(
    "version",
    [
        BEFORE,
        *(
            pytest.param(
                version,
                marks=pytest.mark.xfail(
                    strict=True,
                    reason="once this passes, the patch has had its day there",
                    raises=pytest.fail.Exception,
                ),
            )
            for version in AFFECTED
        ),
    ],
)
def test_upstream_alone_frees_only_what_nobody_else_holds(
    find: Callable[[str], dict[str, Any]], version: str
) -> None:
    released = find(version)["released"]
    if losses(released) != [0, 0]:
        pytest.fail(f"verl {version} frees memory that is in use")


@on_affected
def test_upstream_alone_loses_every_weight_of_a_model_that_is_offloaded_already(
    find: Callable[[str], dict[str, Any]], version: str
) -> None:
    again = find(version)["released"]["again"]
    assert again["lost"] == again["tensors"] > COUNT
    assert find(version)["released"]["models with losses"] > COUNT / 5


@on_affected
def test_with_the_patch_no_value_is_lost(find: Callable[[str], dict[str, Any]], version: str) -> None:
    found = find(version)
    assert found["state"] == "applied"
    assert losses(found["overlay"]) == [0, 0]


@on_affected
def test_it_is_said_what_stays_on_the_device_and_nothing_of_what_was_never_there(
    find: Callable[[str], dict[str, Any]], version: str
) -> None:
    ours, released = find(version)["overlay"], find(version)["released"]
    assert ours["said"]
    assert all(said.startswith("megatron_utils.py: verl.offload") for said in ours["said"])
    assert all("bytes on cuda:0 are not freed" in said for said in ours["said"])
    assert ours["again"]["said"] == 0
    assert released["said"] == []


@on_all
def test_memory_that_nobody_else_holds_goes_as_early_with_and_without_it(
    find: Callable[[str], dict[str, Any]], version: str
) -> None:
    """At each copy, the very same bytes: resizing frees nothing earlier than letting go does in 0.8.0."""
    ours, released = find(version)["overlay"], find(version)["released"]
    assert ours["live"] == released["live"] == find(BEFORE)["released"]["live"]
    assert all(live[0] > live[-1] for live in ours["live"] if len(live) > 1)
    assert ours["left"] == released["left"] == 0


def test_before_0_9_it_is_not_needed(find: Callable[[str], dict[str, Any]]) -> None:
    assert find(BEFORE)["state"] == "skipped"


def test_the_patch_is_of_the_form() -> None:
    assert_form(PATCH, __file__)
