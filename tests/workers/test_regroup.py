"""Groups of ranks that are made anew with other members: real processes, real groups, real stores."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from rank_starter import OWN, run_each

pytest.importorskip("torch")

HERE = Path(__file__).parent
pytestmark = pytest.mark.distributed
SHORT = 2.5

#: What happens one after the other to the processes a, b, c and d.
STEPS: dict[str, dict[str, Any]] = {
    "two": {"worlds": [["a", "b"]]},
    "made again": {"worlds": [["a", "b"]]},
    "one replaced": {"worlds": [["a", "c"]]},
    "in other places": {"worlds": [["c", "a"]]},
    "grown": {"worlds": [["a", "b", "c", "d"]], "halves": True},
    "two at once": {"worlds": [["d", "a"], ["b", "c"]]},
    "one is silent": {"worlds": [["a", "b"]], "absent": ["b"], "timeout": SHORT},
    "and is replaced": {"worlds": [["a", "d"]]},
    "the first is silent": {"worlds": [["a", "b"]], "absent": ["a"], "timeout": SHORT},
    "and replaced": {"worlds": [["c", "b"]]},
    "grown again": {"worlds": [["b", "d", "a", "c"]], "halves": True},
    "shrunk": {"worlds": [["b", "a"]]},
}
SILENT = ("one is silent", "the first is silent")


def run(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return for each step what its comparisons raised in each process that took part."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    names = ["a", "b", "c", "d"]
    steps = [{"absent": [], **step, "processes": len(names)} for step in STEPS.values()]
    kept = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    clean = {name: text for name, text in os.environ.items() if not name.startswith("OVERLAY")}
    clean |= {"MASTER_PORT": str(kept.port), "RANK": "0", "WORLD_SIZE": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    commands = [[*OWN, str(HERE / "rank_regroup.py"), name, json.dumps(steps)] for name in names]
    told = [said["steps"] for said in run_each(commands, [clean] * len(names), folder)]
    return {name: [said[n] for said in told if said[n]] for n, name in enumerate(STEPS)}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    return run(tmp_path_factory.mktemp("regroup"))


@pytest.mark.parametrize("step", [step for step in STEPS if step not in SILENT])
def test_ranks_that_are_alike_agree_whoever_was_there_before(found: dict[str, list[Any]], step: str) -> None:
    told = found[step]
    assert len(told) == sum(map(len, STEPS[step]["worlds"]))
    assert [rank["world"]["said"] for rank in told] == [""] * len(told)


@pytest.mark.parametrize("step", ["grown", "grown again"])
def test_groups_within_one_world_are_compared_at_the_same_time(
    found: dict[str, list[Any]], step: str
) -> None:
    assert [rank["half"]["said"] for rank in found[step]] == [""] * 4
    assert [rank["again"]["said"] for rank in found[step]] == [""] * 4


@pytest.mark.parametrize(("step", "who"), [("one is silent", 1), ("the first is silent", 0)])
def test_only_a_rank_that_is_silent_is_named(found: dict[str, list[Any]], step: str, who: int) -> None:
    (rank,) = found[step]
    said = rank["world"]["said"]
    assert said.startswith(f"rank {who} did not take part within {SHORT:g} s: ")
    assert said.count("\n") == 1
