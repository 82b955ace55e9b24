"""Actor, reference and critic in one process, on real gloo ranks: who asks for dynamic groups has them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from checks import RANKS
from rank_rows import rows_of, run_once

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.real,
    pytest.mark.nightly("the first release stands for the last one", megatron=("0.19.2",)),
]

CASES = RANKS / "colocated_cases.py"
ORDERS = [" ".join(order) for order in itertools.permutations(("actor", "ref", "critic"))]

#: The first and the last release that has what is asked for.
on_releases = pytest.mark.parametrize("megatron", ["0.16.1", "0.19.2"], indirect=True)
on_the_first = pytest.mark.parametrize("megatron", ["0.16.1"], indirect=True)


def found(world: int, megatron: Path, case: str) -> list[dict[str, Any]]:
    """Return what each rank found, where nothing may raise."""
    return rows_of(run_once(world, CASES, release=megatron), case)


@on_the_first
def test_verl_alone_has_no_groups_for_an_actor_behind_its_reference(megatron: Path) -> None:
    case = "layout, ref critic actor, actor"
    how: dict[str, Any] = {"patches": "megatron.dynamic-cp-names", "release": megatron, "only": (case,)}
    # To ask for two ranks is a `KeyError`, to ask for one or all is none.
    assert [sorted(row["groups"]) for row in rows_of(run_once(4, CASES, **how), case)] == [["1", "4"]] * 4


@on_releases
@pytest.mark.parametrize("flagged", ["actor", "ref"])
@pytest.mark.parametrize("order", ORDERS)
def test_every_order_has_the_same_groups(megatron: Path, order: str, flagged: str) -> None:
    rows = found(4, megatron, f"layout, {order}, {flagged}")
    neighbours = [
        {str(size): list(range(rank - rank % size, rank - rank % size + size)) for size in (1, 2, 4)}
        for rank in range(4)
    ]
    assert [row["groups"] for row in rows] == neighbours


@on_the_first
@pytest.mark.parametrize("name", ["tensor", "pipeline"])
def test_every_data_parallel_group_is_cut_alike(megatron: Path, name: str) -> None:
    """8 ranks in two data parallel groups: all ranks make the groups of both."""
    first = [row["groups"] for row in found(8, megatron, f"first, {name}")]
    late = [row["groups"] for row in found(8, megatron, f"late, {name}")]
    assert late == first
    assert [sorted(row) for row in late] == [["1", "2", "4"]] * 8
    assert late[3]["4"] == ([1, 3, 5, 7] if name == "tensor" else [0, 1, 2, 3])


@on_the_first
@pytest.mark.parametrize("order", ["first", "late"])
def test_no_power_of_two_is_refused_in_either_order(megatron: Path, order: str) -> None:
    for row in found(6, megatron, f"{order}, tensor"):
        assert row["refused"][0] == "ValueError"
        assert "a power of two, not 3" in row["refused"][1]


@on_releases
@pytest.mark.parametrize(
    ("case", "error", "words"),
    [
        ("impossible, static first", "NotImplementedError", "beside context_parallel_size=2"),
        ("impossible, static second", "NotImplementedError", "context_parallel_size=2 does not work beside"),
        ("impossible, other tensor size", "ValueError", "= (1, 1), and the engine that was made first"),
        ("impossible, other pipeline size", "ValueError", "has (1, 2)"),
        ("impossible, no cap", "ValueError", "needs max_seqlen_per_dp_cp_rank"),
        ("impossible, both ways", "NotImplementedError", "context_parallel_size=2"),
        ("impossible, critic too", "NotImplementedError", "value head"),
        ("outlived", "NotImplementedError", "groups of [2] ranks"),
    ],
)
def test_what_cannot_be_colocated_is_refused_on_every_rank(
    megatron: Path, case: str, error: str, words: str
) -> None:
    for row in found(4, megatron, case):
        assert row["refused"][0] == error, row
        assert words in row["refused"][1]
