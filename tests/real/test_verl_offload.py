"""What offloading in verl 0.9 loses, and that it frees nothing earlier than that of 0.8.0."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from checks import SEED

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.real

COUNT = 100

BEFORE = "0.8.0"
AFFECTED = ("0.9.0", "0.9.1")


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


@pytest.mark.parametrize("version", AFFECTED)
def test_upstream_alone_loses_every_weight_of_a_model_that_is_offloaded_already(
    find: Callable[[str], dict[str, Any]], version: str
) -> None:
    again = find(version)["released"]["again"]
    assert again["lost"] == again["tensors"] > COUNT
    assert find(version)["released"]["models with losses"] > COUNT / 5


@pytest.mark.parametrize("version", [BEFORE, *AFFECTED])
def test_memory_that_nobody_else_holds_goes_as_early_with_and_without_it(
    find: Callable[[str], dict[str, Any]], version: str
) -> None:
    """At each copy, the very same bytes: resizing frees nothing earlier than letting go does in 0.8.0."""
    ours, released = find(version)["overlay"], find(version)["released"]
    assert ours["live"] == released["live"] == find(BEFORE)["released"]["live"]
    assert all(live[0] > live[-1] for live in ours["live"] if len(live) > 1)
    assert ours["left"] == released["left"] == 0
