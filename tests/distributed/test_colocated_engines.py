"""Actor, reference and critic in one process, on real gloo ranks: who asks for dynamic groups has them."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

import pytest
from checks import RANKS, SEED
from rank_rows import rows_of, run_once

from overlay.compat.ranks.launcher import run_cases

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.real,
    pytest.mark.nightly("the first release stands for the last one", megatron=("0.19.2",)),
]

#: The first and the last release that has what is asked for; those between them too if `EVERY_RELEASE=1`.
RELEASES = (
    ("0.16.1", "0.17.1", "0.18.2", "0.19.2") if os.environ.get("EVERY_RELEASE") else ("0.16.1", "0.19.2")
)
TOLERANCE = 1e-5
ORDERS = [" ".join(order) for order in itertools.permutations(("actor", "ref", "critic"))]

on_releases = pytest.mark.parametrize("megatron", RELEASES, indirect=True)


def results(world: int, megatron: Path) -> dict[str, list[Any]]:
    """Return what the ranks found on a release."""
    return run_once(world, RANKS / "colocated_cases.py", release=megatron)


def found(world: int, megatron: Path, case: str) -> list[dict[str, Any]]:
    """Return what each rank found, where nothing may raise."""
    return rows_of(results(world, megatron), case)


def neighbours(world: int) -> list[dict[str, list[int]]]:
    """Return, for each rank, its group of each size."""
    sizes = [1 << bit for bit in range(world.bit_length())]
    return [
        {str(size): list(range(rank - rank % size, rank - rank % size + size)) for size in sizes}
        for rank in range(world)
    ]


# --- verl's workers ---


@on_releases
@pytest.mark.parametrize("first", ["policy", "critic"])
@pytest.mark.parametrize("flags", ["actor", "ref", "actor and ref"])
def test_workers_with_the_flag_on_any(megatron: Path, flags: str, first: str) -> None:
    rows = found(4, megatron, f"{flags}, {first} first")
    plain = found(4, megatron, f"nobody, {first} first")
    assert [row["groups"] for row in rows] == neighbours(4)
    for row in rows:
        assert row["worst"] < TOLERANCE, (SEED, row)
        if row["source"]:
            assert row["reported"] == pytest.approx(row["loss"], rel=TOLERANCE), SEED
    for role in ("actor", "ref", "critic"):
        if role not in flags:
            # To the bit: nothing of the others' groups reaches an engine without the flag.
            assert [row[role] for row in rows] == [row[role] for row in plain], (SEED, role)
            continue
        whole = [sequence for row in plain for sequence in row[role]]
        assert [row[role] is None for row in rows] == [False, True, True, True]
        assert len(rows[0][role]) == len(whole)
        for got, want in zip(rows[0][role], whole, strict=True):
            # Behind the last token comes whatever the packed batch begins with: nobody looks at that one.
            assert got[:-1] == pytest.approx(want[:-1], abs=TOLERANCE), SEED


@on_releases
def test_a_critic_with_the_flag_is_refused_when_it_is_made(megatron: Path) -> None:
    rows = results(4, megatron)["critic too"]
    for row in rows:
        assert row["error"] == "NotImplementedError"
        assert "value head" in row["message"]


@on_releases
def test_groups_are_made_again_after_they_are_destroyed(megatron: Path) -> None:
    rows = found(4, megatron, "laid out anew")
    assert [row["groups, first"] for row in rows] == neighbours(4)
    for row in rows:
        assert row["left, first"] == row["left, second"] == []
        assert row["groups, second"] == row["groups, first"]
        assert row["outputs, second"] == row["outputs, first"]
        kind, message = row["outlived"]
        assert kind == "NotImplementedError"
        assert "groups of [2] ranks" in message


# --- layouts ---


@pytest.mark.parametrize("megatron", RELEASES[:1], indirect=True)
def test_verl_alone_has_no_groups_for_an_actor_behind_its_reference(megatron: Path, tmp_path: Path) -> None:
    case = "layout, ref critic actor, actor"
    rows = run_cases(
        4,
        RANKS / "colocated_cases.py",
        tmp_path,
        patches="megatron.dynamic-cp-names",
        release=megatron,
        only=[case],
    )[case]
    # To ask for two ranks is a `KeyError`, to ask for one or all is none.
    assert [sorted(row["groups"]) for row in rows] == [["1", "4"]] * 4


@on_releases
@pytest.mark.parametrize("flagged", ["actor", "ref"])
@pytest.mark.parametrize("order", ORDERS)
def test_every_order_has_the_same_groups(megatron: Path, order: str, flagged: str) -> None:
    rows = found(4, megatron, f"layout, {order}, {flagged}")
    assert [row["groups"] for row in rows] == neighbours(4)


@pytest.mark.parametrize("megatron", RELEASES[:1], indirect=True)
@pytest.mark.parametrize("name", ["tensor", "pipeline"])
def test_every_data_parallel_group_is_cut_alike(megatron: Path, name: str) -> None:
    """8 ranks in two data parallel groups: all ranks make the groups of both."""
    first = [row["groups"] for row in found(8, megatron, f"first, {name}")]
    late = [row["groups"] for row in found(8, megatron, f"late, {name}")]
    assert late == first
    assert [sorted(row) for row in late] == [["1", "2", "4"]] * 8
    assert late[3]["4"] == ([1, 3, 5, 7] if name == "tensor" else [0, 1, 2, 3])


@pytest.mark.parametrize("megatron", RELEASES[:1], indirect=True)
@pytest.mark.parametrize("order", ["first", "late"])
def test_no_power_of_two_is_refused_in_either_order(megatron: Path, order: str) -> None:
    for row in found(6, megatron, f"{order}, tensor"):
        assert row["refused"][0] == "ValueError"
        assert "a power of two, not 3" in row["refused"][1]


@on_releases
@pytest.mark.parametrize(
    ("case", "error", "words"),
    [
        ("static first", "NotImplementedError", "beside context_parallel_size=2"),
        ("static second", "NotImplementedError", "context_parallel_size=2 does not work beside"),
        ("other tensor size", "ValueError", "= (1, 1), and the engine that was made first"),
        ("other pipeline size", "ValueError", "has (1, 2)"),
        ("no cap", "ValueError", "needs max_seqlen_per_dp_cp_rank"),
        ("both ways", "NotImplementedError", "context_parallel_size=2"),
    ],
)
def test_what_cannot_be_colocated_is_refused_on_every_rank(
    megatron: Path, case: str, error: str, words: str
) -> None:
    for row in found(4, megatron, f"impossible, {case}"):
        assert row["refused"][0] == error, row
        assert words in row["refused"][1]
