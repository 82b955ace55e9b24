"""Ranks of verl's workers and trainers that select other patches than the rest stop before they train."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from checks import RANKS
from listed_sources import Listed

pytestmark = [pytest.mark.distributed, pytest.mark.real]


@pytest.fixture(
    scope="module",
    params=[("verl==0.7.0", "verl.trainer.fsdp_sft_trainer"), ("verl==0.9.0", "verl.workers.engine_workers")],
    ids=["SFT on FSDP", "any engine"],
)
def said(
    request: pytest.FixtureRequest, listed: Listed, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """Return what each of two ranks raised, by case."""
    release, module = request.param
    folder = tmp_path_factory.mktemp("ranks")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OVERLAY")}
    environ["PYTHONPATH"] = str(listed(release))
    command = [sys.executable, "-W", "ignore", str(RANKS / "fsdp_mesh_check.py"), module, str(folder)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


def test_ranks_that_are_alike_go_on(said: list[dict[str, Any]]) -> None:
    assert [rank["alike"] for rank in said] == ["", ""]


def test_another_selection_stops_both_ranks(said: list[dict[str, Any]]) -> None:
    first, second = (rank["another selection"] for rank in said)
    assert first == second
    lines = [" ".join(line.split()) for line in first.splitlines()]
    assert lines[0] == "the ranks do not run the same:"
    # Whatever else `all` selects, this one is selected by rank 0 alone.
    ours = lines.index("verl.strict-token-budget")
    assert lines[ours + 1].startswith("rank 0 in force for verl")
    assert lines[ours + 2].startswith("rank 1 absent")
