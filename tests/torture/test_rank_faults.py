"""Real gloo ranks of which one fails: every rank that is left says the same."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

# Shared with another folder of tests, which pytest need not have put on the path.
sys.path.append(str(Path(__file__).parents[1] / "workers"))
from rank_starter import run_ranks
from simulated_ranks import named

pytest.importorskip("torch")
pytestmark = pytest.mark.distributed

HERE = Path(__file__).parent


def run(folder: Path, scene: str, world: int = 4) -> list[Any]:
    clean = {name: text for name, text in os.environ.items() if not name.startswith("OVERLAY")}
    command = [sys.executable, "-W", "ignore", str(HERE / "rank_faults.py"), scene]
    return run_ranks(command, [clean] * world, folder)


def names(said: str, rank: int) -> bool:
    """Tell whether a rank is one of those that did not come. On a slow machine there may be others."""
    who, did_not, _ = said.partition(" did not take part within 3 s")
    return bool(did_not) and rank in named(who)


def test_a_rank_that_dies_between_arming_and_agreement_is_named_by_all(tmp_path: Path) -> None:
    (said,) = {rank["said"] for rank in run(tmp_path, "a rank dies") if "said" in rank}
    assert names(said, 2), said


def test_when_the_rank_that_keeps_the_store_dies_all_others_raise(tmp_path: Path) -> None:
    found = run(tmp_path, "the first rank dies")
    said = [rank["said"] for rank in found if "said" in rank]
    assert len(said) == 3
    # Which of both it is depends on how soon the system tells that the connection is gone.
    assert all("store failed" in text or names(text, 0) for text in said), said


def test_a_slow_rank_is_waited_for(tmp_path: Path) -> None:
    assert [rank["said"] for rank in run(tmp_path, "a slow rank")] == [""] * 4


@pytest.mark.parametrize(("scene", "who"), [("a rank", 1), ("the first rank", 0)])
def test_a_rank_that_comes_too_late_is_told_what_the_others_said(
    tmp_path: Path, scene: str, who: int
) -> None:
    scene += " that is too late" if who else " is too late"
    (said,) = {rank["said"] for rank in run(tmp_path, scene)}
    assert names(said, who), said


@pytest.mark.real
def test_a_rank_with_nothing_to_do_agrees_with_those_that_have(tmp_path: Path) -> None:
    pytest.importorskip("verl", reason="verl is not installed")
    found = run(tmp_path, "a rank with nothing to do", world=2)
    # Nor does the first rank wait for it, where it compares a group of which it is not.
    assert [rank["said"] for rank in found] == ["", ""]
    # A patch of a module that was not imported yet is armed, and not in force.
    assert [rank["states"]["verl.fast-partitioner"] for rank in found] == ["applied", "armed"]
