"""verl.strict-token-budget on real gloo ranks, in data parallel groups of 4 and of 2, against verl 0.9.1.

Each release runs once, on 4 ranks. What is drawn is the same for all of them.
"""

from __future__ import annotations

from typing import Any

import pytest
from checks import RANKS, SEED
from rank_rows import run_once

from sources import fetch_release

WORLD = 4
CAP = 64
#: Holds the bound itself.
JUDGE = "0.9.1"
#: Without groups, and where no `dp_group` means all ranks.
UNGROUPED = "0.7.0"

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.real,
    pytest.mark.nightly("the last release stands for it", version=(UNGROUPED,)),
    pytest.mark.parametrize("version", [UNGROUPED, "0.9.0"]),
]


def results(version: str) -> dict[str, list[Any]]:
    """Return what the ranks found on a release, or skip the test that asks for it."""
    try:
        release = fetch_release.fetch(f"verl=={version}")
    except fetch_release.FetchError as error:
        pytest.skip(str(error))
    found = run_once(
        WORLD,
        "",
        patches="verl.strict-token-budget,verl.fast-partitioner",
        program=str(RANKS / "token_budget_cases.py"),
        release=release,
        timeout=240,
    )
    # All ranks went through all cases: none hung, none died.
    lost = {name: ranks for name, ranks in found.items() if None in ranks}
    assert not lost, (SEED, lost)
    return found


def groups(version: str) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return (case, what the ranks of one data parallel group found), for every group and case."""
    listed = []
    for name, ranks in results(version).items():
        if not name.endswith(("/all", "/two")) or "skipped" in ranks[0]:
            continue
        together = {tuple(rank["members"]) for rank in ranks}
        listed += [(name, [ranks[member] for member in members]) for members in together]
    return listed


def assert_divided(name: str, rank: dict[str, Any]) -> None:
    """Hold what one rank has made of its batch to what was asked for."""
    lengths, arguments = rank["lengths"], rank["arguments"]
    tokens = [sum(lengths[sample] for sample in samples) for samples in rank["indices"]]
    size = arguments.get("force_group_size", 1)
    # What must stay together goes alone if it is too much, as these releases let it.
    together = [n for n, of in zip(tokens, rank["indices"], strict=True) if len(of) > size]
    assert max([*together, *lengths], default=0) <= CAP, (SEED, name, rank)
    assert all(rank["indices"])
    assert sorted(sample for samples in rank["indices"] for sample in samples) == list(range(len(lengths)))
    assert len(tokens) % arguments.get("num_batches_divided_by", 1) == 0
    assert len(tokens) >= arguments.get("min_num_micro_batch", 1)


def test_the_ranks_of_a_group_take_one_number_of_micro_batches_or_fail_with_one_error(version: str) -> None:
    divided = 0
    for name, ranks in groups(version):
        alone = "on their own" in name
        # One collective where upstream has one, and all meet in the next.
        assert [rank["collectives"] for rank in ranks] == [0 if alone else 1] * len(ranks), (SEED, name)
        assert [rank["in_step"] for rank in ranks] == [len(ranks)] * len(ranks), (SEED, name)
        if not alone:
            assert len({rank.get("message") for rank in ranks}) == 1, (SEED, name, ranks)
            assert len({len(rank.get("indices", ())) for rank in ranks}) == 1, (SEED, name, ranks)
        for rank in ranks:
            if "error" in rank:
                assert rank["error"][:3] == ["TokenBudgetError", "AssertionError", "ValueError"], (name, rank)
            else:
                divided += 1
                assert_divided(name, rank)
    assert divided >= 60


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("too long on one rank", "a sample of 65 tokens"),
        ("too long on the last", "a sample of 66 tokens"),
        ("no multiple", "6 micro-batches are needed"),
        ("indivisible", "3 samples do not divide into groups of force_group_size=2"),
    ],
)
def test_what_one_rank_cannot_do_is_an_error_on_all(version: str, case: str, words: str) -> None:
    for rank in results(version)[f"{case}/0/all"]:
        assert words in rank.get("message", words if version == UNGROUPED and "skipped" in rank else "")


@pytest.mark.parametrize(
    ("case", "count"),
    [("the issue", 8), ("one sample each", 1), ("one sample on one rank", 1), ("one empty sample", 1)],
)
def test_ranks_with_little_to_do(version: str, case: str, count: int) -> None:
    assert [len(rank["indices"]) for rank in results(version)[f"{case}/0/all"]] == [count] * WORLD


def test_a_rank_with_the_patch_trains_along_with_ranks_without_it(version: str) -> None:
    found = {name: ranks for name, ranks in results(version).items() if name.startswith("half/fresh/")}
    assert len(found) == 6
    for name, ranks in found.items():
        assert {len(rank["indices"]) for rank in ranks} == {len(ranks[0]["indices"])}, (SEED, name)
        assert [rank["in_step"] for rank in ranks] == [WORLD] * WORLD
        assert_divided(name, ranks[0])
    first, *others = results(version)["half/too long"]
    assert "a sample of 65 tokens" in first["message"]
    assert [rank["error"][0] for rank in others] == ["AssertionError"] * (WORLD - 1)


def test_without_a_group_the_ranks_agree_only_where_they_did(version: str) -> None:
    ranks = results(version)["fresh/0/no group"]
    assert [rank["collectives"] for rank in ranks] == [int(version == UNGROUPED)] * WORLD


def test_there_are_as_many_micro_batches_as_with_the_judge_or_fewer(version: str) -> None:
    ours, judged = results(version), results(JUDGE)
    compared = 0
    for name, _ in groups(version):
        for mine, other in zip(ours[name], judged[name], strict=True):
            if "indices" not in other:
                continue
            assert mine["lengths"] == other["lengths"]
            assert len(mine["indices"]) <= len(other["indices"]), (SEED, name, mine, other)
            if len(mine["indices"]) == len(other["indices"]):
                assert mine["indices"] == other["indices"], (SEED, name)
            compared += 1
    assert compared >= 200
