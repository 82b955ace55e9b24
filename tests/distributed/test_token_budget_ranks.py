"""verl.strict-token-budget on real gloo ranks, in data parallel groups of 4 and of 2, against verl 0.9.1.

Each release runs once, on 4 ranks. What is drawn is the same for all of them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from checks import RANKS, SEED

from overlay.compat.ranks.launcher import run_cases
from sources import fetch_release

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.real,
    pytest.mark.by_variant("verl.strict-token-budget", "verl.fast-partitioner", version="verl"),
]

WORLD = 4
PATCHES = "verl.strict-token-budget,verl.fast-partitioner"
CAP = 64

JUDGE = "0.9.1"
#: Without groups, and where no `dp_group` means all ranks.
UNGROUPED = "0.7.0"
AFFECTED = (UNGROUPED, "0.7.1", "0.8.0", "0.9.0")

on_affected = pytest.mark.parametrize("version", AFFECTED)

_FOUND: dict[str, Any] = {}


def folder_of(version: str) -> Path:
    """Return the folder of a release, or skip the test that asks for it."""
    try:
        return fetch_release.fetch(f"verl=={version}")
    except fetch_release.FetchError as error:
        pytest.skip(str(error))


def results(version: str) -> dict[str, list[Any]]:
    """Return what the ranks found on a release. They are started once; it is their start that takes time."""
    if version not in _FOUND:
        release = folder_of(version)
        with tempfile.TemporaryDirectory() as folder:
            try:
                _FOUND[version] = run_cases(
                    WORLD,
                    RANKS / "token_budget_cases.py",
                    Path(folder),
                    patches=PATCHES,
                    program=str(RANKS / "gloo_main.py"),
                    release=release,
                    timeout=240,
                )
            except RuntimeError as error:
                _FOUND[version] = error  # found once, reported by every test
    found = _FOUND[version]
    if isinstance(found, RuntimeError):
        raise found
    # All ranks went through all cases: none hung, none died.
    assert None not in found.get("alone", [None]), {
        name: ranks for name, ranks in found.items() if None in ranks
    }
    print(f"seed {SEED}")
    return dict(found)


def groups(version: str) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return (case, what the ranks of one data parallel group found), for every group and case."""
    listed = []
    for name, ranks in results(version).items():
        if not name.endswith(("/all", "/two")) or "skipped" in ranks[0]:
            continue
        together = {tuple(rank["members"]) for rank in ranks}
        listed += [(name, [ranks[member] for member in members]) for members in together]
    return listed


@on_affected
def test_the_patches_were_in_place(version: str) -> None:
    ledgers = results(version)["ledger"]
    assert len(ledgers) == WORLD
    for ledger in ledgers:
        assert {patch: ledger[patch] for patch in PATCHES.split(",")} == dict.fromkeys(
            PATCHES.split(","), "applied"
        )


@on_affected
def test_the_ranks_of_a_group_take_one_number_of_micro_batches_within_the_bound(version: str) -> None:
    divided = 0
    for name, ranks in groups(version):
        if "error" in ranks[0]:
            continue
        divided += 1
        if "on their own" not in name:
            assert len({len(rank["indices"]) for rank in ranks}) == 1, (name, ranks)
        for rank in ranks:
            lengths, arguments = rank["lengths"], rank["arguments"]
            tokens = [sum(lengths[sample] for sample in samples) for samples in rank["indices"]]
            size = arguments.get("force_group_size", 1)
            # What must stay together goes alone if it is too much, as these releases let it.
            together = [n for n, of in zip(tokens, rank["indices"], strict=True) if len(of) > size]
            assert max(together, default=0) <= CAP
            assert max(lengths) <= CAP
            assert all(rank["indices"])
            flat = [sample for samples in rank["indices"] for sample in samples]
            assert sorted(flat) == list(range(len(lengths)))
            assert len(tokens) % arguments.get("num_batches_divided_by", 1) == 0
            assert len(tokens) >= arguments.get("min_num_micro_batch", 1)
    assert divided >= 60


@on_affected
def test_either_all_ranks_of_a_group_fail_with_one_error_or_none(version: str) -> None:
    for name, ranks in groups(version):
        if "on their own" not in name:
            assert len({rank.get("message") for rank in ranks}) == 1, (name, ranks)
        for rank in ranks:
            if "error" in rank:
                assert rank["error"][:3] == ["TokenBudgetError", "AssertionError", "ValueError"], (name, rank)


@on_affected
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
    ranks = results(version)[f"{case}/0/all"]
    if version == UNGROUPED and case == "indivisible":
        assert all("skipped" in rank for rank in ranks)
        return
    for rank in ranks:
        assert words in rank["message"]


@on_affected
@pytest.mark.parametrize(
    ("case", "count"),
    [("the issue", 8), ("one sample each", 1), ("one sample on one rank", 1), ("one empty sample", 1)],
)
def test_ranks_with_little_to_do(version: str, case: str, count: int) -> None:
    assert [len(rank["indices"]) for rank in results(version)[f"{case}/0/all"]] == [count] * WORLD


@on_affected
def test_what_is_too_heavy_together_goes_alone_on_its_rank(version: str) -> None:
    ranks = results(version)["too heavy together/0/all"]
    if version == UNGROUPED:
        assert all("skipped" in rank for rank in ranks)
        return
    assert sorted(map(sorted, ranks[0]["indices"])) == [[0, 1, 4, 5], [2, 3]]
    for rank in ranks[1:]:
        assert sorted(map(sorted, rank["indices"])) == [[0, 1], [2, 3]]


@on_affected
def test_one_collective_where_upstream_has_one_and_all_meet_in_the_next(version: str) -> None:
    for name, ranks in groups(version):
        expected = 0 if "on their own" in name else 1
        assert [rank["collectives"] for rank in ranks] == [expected] * len(ranks), name
        assert [rank["in_step"] for rank in ranks] == [len(ranks)] * len(ranks), name


@on_affected
def test_a_rank_with_the_patch_trains_along_with_ranks_without_it(version: str) -> None:
    found = {name: ranks for name, ranks in results(version).items() if name.startswith("half/fresh/")}
    assert len(found) == 6
    for name, ranks in found.items():
        first = ranks[0]
        assert {len(rank["indices"]) for rank in ranks} == {len(first["indices"])}, name
        assert [rank["collectives"] for rank in ranks] == [1] * WORLD
        assert [rank["in_step"] for rank in ranks] == [WORLD] * WORLD
        tokens = [sum(first["lengths"][sample] for sample in samples) for samples in first["indices"]]
        assert max(tokens) <= CAP


@on_affected
def test_what_a_rank_with_the_patch_cannot_do_is_an_error_on_those_without_it(version: str) -> None:
    first, *others = results(version)["half/too long"]
    assert "a sample of 65 tokens" in first["message"]
    assert [rank["error"][0] for rank in others] == ["AssertionError"] * (WORLD - 1)


@on_affected
def test_without_a_group_the_ranks_agree_only_where_they_did(version: str) -> None:
    expected = 1 if version == UNGROUPED else 0
    ranks = results(version)["fresh/0/no group"]
    assert [rank["collectives"] for rank in ranks] == [expected] * WORLD
    # Or in one error, if one of them has too few samples for what another needs.
    agreed = {len(rank["indices"]) if "indices" in rank else rank["message"] for rank in ranks}
    assert version != UNGROUPED or len(agreed) == 1


@on_affected
def test_there_are_as_many_micro_batches_as_with_the_judge_or_fewer(version: str) -> None:
    ours, judged = results(version), results(JUDGE)
    compared = 0
    for name, _ in groups(version):
        for mine, other in zip(ours[name], judged[name], strict=True):
            if "indices" not in other:
                continue
            assert mine["lengths"] == other["lengths"]
            assert len(mine["indices"]) <= len(other["indices"]), (name, mine, other)
            if len(mine["indices"]) == len(other["indices"]):
                assert mine["indices"] == other["indices"], name
            compared += 1
    assert compared >= 200


def test_the_judge_asks_more_often() -> None:
    assert results(JUDGE)["ledger"][0]["verl.strict-token-budget"] == "skipped"
    asked = {
        rank["collectives"]
        for name, ranks in groups(JUDGE)
        for rank in ranks
        # Before it raises, it has asked twice.
        if "fresh/" in name and "error" not in rank
    }
    assert min(asked) >= 3


@pytest.mark.parametrize("version", [*AFFECTED, JUDGE])
def test_upstream_alone_lets_the_others_wait(version: str) -> None:
    first, *others = results(version)["alone"]
    assert "AssertionError" in first["error"]
    for rank in others:
        assert "RuntimeError" in rank["error"], rank
    # They were in a collective until the time of the group was up for one of them, which left the others.
    assert any("Timed out waiting" in rank["message"] for rank in others), others
