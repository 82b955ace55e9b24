"""verl.strict-token-budget on real gloo ranks, in data parallel groups of 4 and of 2.

Each release runs once, on 4 ranks. `test_strict_token_budget` asks for numbers and words of errors.
"""

from __future__ import annotations

from typing import Any

import pytest
from checks import RANKS, SEED
from listed_sources import Listed
from rank_rows import run_once

WORLD = 4
CAP = 64
#: Without groups, and where no `dp_group` means all ranks.
UNGROUPED = "0.7.0"

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.real,
    pytest.mark.nightly("the last release stands for it", version=(UNGROUPED,)),
    pytest.mark.parametrize("version", [UNGROUPED, "0.9.0"]),
]


@pytest.fixture
def results(version: str, listed: Listed) -> dict[str, list[Any]]:
    """What the ranks found on a release. None of them hung, and none died."""
    found = run_once(
        WORLD,
        RANKS / "token_budget_cases.py",
        patches="verl.strict-token-budget,verl.fast-partitioner",
        program="megatron_main.py",
        release=listed(f"verl=={version}"),
        timeout=240,
    )
    lost = {name: ranks for name, ranks in found.items() if None in ranks}
    assert not lost, (SEED, lost)
    return found


def groups(results: dict[str, list[Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return (case, what the ranks of one data parallel group found), for every group and case."""
    listed = []
    for name, ranks in results.items():
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


def test_the_ranks_of_a_group_take_one_number_of_micro_batches_or_fail_with_one_error(
    version: str, results: dict[str, list[Any]]
) -> None:
    divided = 0
    for name, ranks in groups(results):
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
    without = [rank["collectives"] for rank in results["fresh/0/no group"]]
    assert without == [int(version == UNGROUPED)] * WORLD


def test_a_rank_with_the_patch_trains_along_with_ranks_without_it(results: dict[str, list[Any]]) -> None:
    found = {name: ranks for name, ranks in results.items() if name.startswith("half/fresh/")}
    assert len(found) == 6
    for name, ranks in found.items():
        assert {len(rank["indices"]) for rank in ranks} == {len(ranks[0]["indices"])}, (SEED, name)
        assert [rank["in_step"] for rank in ranks] == [WORLD] * WORLD
        assert_divided(name, ranks[0])
    first, *others = results["half/too long"]
    assert "a sample of 65 tokens" in first["message"]
    assert [rank["error"][0] for rank in others] == ["AssertionError"] * (WORLD - 1)
