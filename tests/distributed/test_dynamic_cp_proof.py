"""Dynamic context parallelism on a whole transformer, on each release of Megatron-Core, against one process.

`proof_cases` says what is run. `./scripts/torture proof` runs it on eight ranks as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from checks import RANKS, SEED
from rank_rows import rows_of, run_once

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.real,
    pytest.mark.nightly("the last release stands for the others", megatron=("0.16.1", "0.17.1", "0.18.2")),
]

WORLD = 4
RELEASES = ("0.16.1", "0.17.1", "0.18.2", "0.19.2")
#: Relative, of every parameter's gradient or weight, of every output, and of the loss: float32's.
TOLERANCE = 1e-5

on_releases = pytest.mark.parametrize("megatron", RELEASES, indirect=True)


def cases_of(megatron: Path, kind: str) -> dict[str, list[dict[str, Any]]]:
    """Return the cases of a kind, with what each rank found on a release."""
    found = run_once(WORLD, RANKS / "proof_cases.py", release=megatron)
    cases = {name: rows_of(found, name) for name in found if name.partition(",")[0] == kind}
    assert cases
    return cases


@on_releases
@pytest.mark.parametrize("kind", ["sft", "ppo"])
def test_every_gradient_and_the_loss_are_those_of_one_process(megatron: Path, kind: str) -> None:
    cases = cases_of(megatron, kind)
    assert len(cases) == {"sft": 9 + 1 + 2, "ppo": 4}[kind]
    for name, rows in cases.items():
        assert sum(row["source"] for row in rows) == 1
        for row in rows:
            assert row["worst"] < TOLERANCE, (SEED, name, row)
            near = pytest.approx(row["loss"], rel=0, abs=TOLERANCE * row.get("size", row["loss"]))
            assert row["loss everywhere"] == near, (SEED, name, row)
            if row["source"]:
                assert row["reported"] == near, (SEED, name, row)


@on_releases
def test_outputs_are_those_of_one_process_in_order(megatron: Path) -> None:
    for name, rows in cases_of(megatron, "outputs").items():
        for row in rows:
            for kind in ("with loss", "without loss"):
                assert row[kind]["error"] < TOLERANCE, (SEED, name, row)
                assert row[kind]["lengths"] == row["lengths"]


@on_releases
def test_every_size_was_there_alone_and_mixed(megatron: Path) -> None:
    cases = cases_of(megatron, "sft")
    alone = [
        {part["size"] for part in row["seen"]}
        for name, rows in cases.items()
        for row in rows
        if ", C " in name
    ]
    assert all({size} in alone for size in (1, 2, 4))
    plans = [tuple(plan) for rows in cases.values() for plan in rows[0].get("plans", ())]
    assert (2, 1, 1) in plans
    # What the planner made, by its own micro-batches and in one that it was given.
    made = {
        name.split(", ")[1]: rows[0]["plans"]
        for name, rows in cases.items()
        if ", planned" in name or ", given" in name
    }
    assert len(made["given"]) == 1
    assert sorted(map(sorted, made["planned"])) == [[1, 1, 2], [WORLD]]
    for rows in cases.values():
        if "plans" in rows[0]:
            assert all(row["plans"] == rows[0]["plans"] for row in rows)
            for index, plan in enumerate(rows[0]["plans"]):
                sizes = [size for size in plan for _ in range(size)]
                assert [row["seen"][index]["size"] for row in rows] == sizes


@on_releases
def test_three_steps_of_the_optimizer_end_at_the_weights_of_one_process(megatron: Path) -> None:
    cases = cases_of(megatron, "steps")
    assert len(cases) == 4
    for name, rows in cases.items():
        for row in rows:
            assert row["moved"] > 0.1, "the weights have hardly moved"
            assert row["worst"] < TOLERANCE, (SEED, name, row)
            assert len(row["losses"]) == 3
            for loss, true in row["losses"]:
                assert loss == pytest.approx(true, rel=TOLERANCE)
