"""Real gloo ranks of which one fails: no wait beyond the stated time, and every rank says the same."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

# Shared with another folder of tests, which pytest need not have put on the path.
sys.path.append(str(Path(__file__).parents[1] / "workers"))
from rank_starter import run_ranks

pytest.importorskip("torch")
pytestmark = pytest.mark.distributed

HERE = Path(__file__).parent
#: As in rank_faults.py. What reading and writing may take on top is `comparison.SLACK`.
SHORT, SLACK = 3.0, 10.0


def run(folder: Path, scene: str, world: int = 4) -> list[Any]:
    clean = {name: text for name, text in os.environ.items() if not name.startswith("OVERLAY")}
    command = [sys.executable, "-W", "ignore", str(HERE / "rank_faults.py"), scene]
    return run_ranks(command, [clean] * world, folder)


def test_a_rank_that_dies_between_arming_and_agreement_is_named_by_all(tmp_path: Path) -> None:
    found = run(tmp_path, "a rank dies")
    (said,) = {rank["said"] for rank in found if "said" in rank}
    assert said.startswith("rank 2 did not take part within 3 s")
    assert max(rank["seconds"] for rank in found if "said" in rank) < SHORT + SLACK


def test_when_the_rank_that_keeps_the_store_dies_all_others_raise(tmp_path: Path) -> None:
    found = run(tmp_path, "the first rank dies")
    said = [rank["said"] for rank in found if "said" in rank]
    assert len(said) == 3
    # Which of both it is depends on how soon the system tells that the connection is gone.
    assert all("store failed" in text or text.startswith("rank 0 did not take part") for text in said), said
    assert max(rank["seconds"] for rank in found if "said" in rank) < SHORT + 2 * SLACK


def test_a_slow_rank_is_waited_for(tmp_path: Path) -> None:
    found = run(tmp_path, "a slow rank")
    assert [rank["said"] for rank in found] == [""] * 4


def test_a_rank_that_comes_too_late_is_told_what_the_others_said(tmp_path: Path) -> None:
    found = run(tmp_path, "a rank that is too late")
    (said,) = {rank["said"] for number, rank in enumerate(found) if number != 1}
    assert said.startswith("rank 1 did not take part within 3 s")
    assert f"a comparison had ended before rank 1 came, and said: {said}" in found[1]["said"]
    assert max(rank["seconds"] for number, rank in enumerate(found) if number != 1) < SHORT + 2 * SLACK


def test_a_first_rank_that_comes_too_late_is_told_that_nobody_waits(tmp_path: Path) -> None:
    found = run(tmp_path, "the first rank is too late")
    (said,) = {rank["said"] for rank in found[1:]}
    assert said.startswith("rank 0 did not take part within 3 s")
    assert found[0]["said"] == "ranks 1-3 had given up waiting for rank 0, which came later\n"
    assert max(rank["seconds"] for rank in found[1:]) < SHORT + 2 * SLACK


@pytest.mark.real
def test_a_rank_with_nothing_to_do_agrees_with_those_that_have(tmp_path: Path) -> None:
    pytest.importorskip("verl", reason="verl is not installed")
    found = run(tmp_path, "a rank with nothing to do", world=2)
    assert [rank["said"] for rank in found] == ["", ""]
    # A patch of a module that was not imported yet is armed, and not in force.
    assert [rank["states"]["verl.fast-partitioner"] for rank in found] == ["applied", "armed"]
    # And of a group that it is not in it waits for nobody.
    assert max(rank["alone"] for rank in found) < SHORT
