"""`slime.capped-partitions` and `slime.vpp-ceiling` in the real `get_data_iterator` of slime 0.1 and 0.2.

What their contracts leave out: rollouts of a realistic size, other callers, words, and upstream's own cure.
Each revision runs once, in a process of its own with that revision first on the path; the tests ask what was
found there. `SLIME_REPO` names a repository of slime.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from checks import SEED

from overlay.compat.slime_on_cpu.rollouts import (
    IMPOSSIBLE,
    PIPELINE,
    REALISTIC,
    WITHOUT_GIANTS,
    broken,
    cases,
    is_impossible,
    is_over,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from overlay.compat.slime_on_cpu.rollouts import Case, Split

pytestmark = [
    pytest.mark.real,
    pytest.mark.by_variant("slime.capped-partitions", "slime.vpp-ceiling", found="slime"),
    pytest.mark.nightly("v0.2.4 stands for it", found=("v0.1.0", "v0.2.0", "8acc034bc")),
]

IDS = ("slime.capped-partitions", "slime.vpp-ceiling")

#: All tags before 0.3; the commit that brought upstream's cure; and the one that took it back.
RUN = ("v0.1.0", "v0.2.0", "v0.2.0.post1", "v0.2.1", "v0.2.2", "v0.2.3", "v0.2.4", "286750aa3", "8acc034bc")
CURED = "286750aa3"
CASES = cases(SEED)


@pytest.fixture
def report(
    slime: Callable[[str], Path], findings: Callable[..., dict[str, Any]]
) -> Callable[[str], dict[str, Any]]:
    """Return the function that gets what `slime_check.py` found on a revision."""

    def get(revision: str) -> dict[str, Any]:
        folder = slime(revision)
        found = findings(folder, "slime_check.py", SEED)
        assert Path(found["path"]).is_relative_to(folder)
        return {**found, "revision": revision}

    return get


@pytest.fixture(params=RUN)
def found(request: pytest.FixtureRequest, report: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """What was found on one revision."""
    return report(str(request.param))


def pairs(found: dict[str, Any], state: str = "overlay") -> Iterator[tuple[Case, list[Split]]]:
    """Yield each case with what its ranks made of it."""
    splits = found[state] if state == "alone" else found[state]["splits"]
    yield from zip(CASES, splits, strict=True)


def named(found: dict[str, Any], name: str, state: str = "overlay") -> list[Split]:
    """Return what the ranks made of the case of that name."""
    return next(splits for given, splits in pairs(found, state) if given["name"] == name)


def test_the_patches_are_applied(found: dict[str, Any]) -> None:
    assert found["states"].items() >= dict.fromkeys(IDS, "applied").items()
    assert found["plain"]["file"]
    assert not found["overlay"]["file"]
    # Nobody but the training side gets another function.
    assert found["overlay"]["shared"]


def test_the_budget_holds_also_with_a_global_batch_size_that_changes(found: dict[str, Any]) -> None:
    refused = 0
    for given, ranks in pairs(found):
        over = any(is_over(given, step) for step in range(given["steps"]))
        refusable = is_impossible(given) or (over and found["revision"] == CURED)
        if refusable and all("error" in rank for rank in ranks):
            refused += 1
            assert all(rank == ranks[0] for rank in ranks), (SEED, given, ranks)
            assert ranks[0]["error"] == "ValueError", (SEED, given, ranks)
        else:
            assert not broken(given, ranks), (SEED, given, broken(given, ranks))
    assert refused >= len(IMPOSSIBLE)
    if found["revision"] in ("v0.1.0", "v0.2.0", "v0.2.0.post1", "v0.2.1"):
        assert "dynamic" not in found["overlay"]
    else:
        assert found["overlay"]["dynamic"] == found["overlay"]["splits"]


def test_sizes_that_are_not_dynamic_are_left_alone(found: dict[str, Any]) -> None:
    assert found["overlay"]["static"] == found["plain"]["static"]
    assert found["overlay"]["static"][1] == [2, 2]


def test_calls_from_elsewhere_are_left_alone(found: dict[str, Any]) -> None:
    assert found["overlay"]["elsewhere"] == found["plain"]["elsewhere"]


@pytest.mark.parametrize("name", [given["name"] for given in IMPOSSIBLE])
def test_what_is_impossible_is_one_error_on_every_rank(found: dict[str, Any], name: str) -> None:
    given = next(given for given in CASES if given["name"] == name)
    errors = [split["message"] for split in named(found, name)]
    assert len(set(errors)) == 1
    for said in (
        f"{len(given['ranks'][0])} samples",
        f"multiple of {given['group']}",
        "Raise global_batch_size",
    ):
        assert said in errors[0]


def test_rounding_up_stops_at_the_samples(found: dict[str, Any]) -> None:
    assert [len(split["steps"][0]) for split in named(found, "7 in groups of 4")] == [8, 8]
    assert [len(split["steps"][0]) for split in named(found, "fewer than a group")] == [4, 4]
    expected = 8 if found["revision"] == CURED else 4
    for name in ("rounded down and right", "rounded down and tight"):
        assert [len(split["steps"][0]) for split in named(found, name)] == [expected, expected]
    assert [len(split["steps"][0]) for split in named(found, "no room to round up")] == [4, 4]


def test_without_virtual_stages_nothing_is_rounded(found: dict[str, Any]) -> None:
    for given, number in zip(PIPELINE, (7, 3), strict=True):
        for split in named(found, given["name"]):
            assert [len(step) for step in split["steps"]] == [number]


def test_upstream_alone_exceeds_the_budget(found: dict[str, Any]) -> None:
    # Why the patches are there.
    if found["revision"] == CURED:
        # It holds the budget, or fails.
        assert "AssertionError" in [split.get("error") for split in named(found, REALISTIC, "plain")]
        return
    for name in (REALISTIC, WITHOUT_GIANTS, "7 in groups of 4", "rounded down and tight"):
        given = next(given for given in CASES if given["name"] == name)
        said = broken(given, named(found, name, "plain"))
        assert any("tokens in a micro-batch of at most" in sentence for sentence in said), name


def test_the_cap_alone_never_stops_one_rank(found: dict[str, Any]) -> None:
    # slime.vpp-ceiling is not selected: where slime rounds down too far, it is as without overlay.
    warned = 0
    plain = found["plain"]["splits"]
    for (given, ranks), before in zip(pairs(found, "alone"), plain, strict=True):
        assert all(("error" in rank) == ("error" in ranks[0]) for rank in ranks)
        if given["stages"] == 1 and given["group"] == 1:
            assert not broken(given, ranks), (SEED, given)
        elif not any("error" in rank for rank in before):
            for split, other in zip(ranks, before, strict=True):
                assert list(map(len, split["steps"])) == list(map(len, other["steps"]))
            warned += any("of at most" in said for said in broken(given, ranks))
    assert bool(warned) == (found["revision"] != CURED)
    assert bool(found["said"]) == bool(warned)
    assert all("slime.vpp-ceiling is not applied" in said for said in found["said"])


# --- upstream's cure, slime#1823 ---


def test_the_cure_fails_on_a_sample_over_the_budget(report: Callable[[str], dict[str, Any]]) -> None:
    found = report(CURED)
    assert found["plain"]["helper"]["slime#1839"] == "AssertionError: This should never happen."
    for name in ("slime#1839", REALISTIC, "one sample over the budget"):
        assert "AssertionError" in [split.get("error") for split in named(found, name, "plain")]
    assert sorted(found["overlay"]["helper"]["slime#1839"]) == [[0], [1, 2]]


def test_the_cure_leaves_micro_batches_empty(report: Callable[[str], dict[str, Any]]) -> None:
    found = report(CURED)
    assert found["plain"]["helper"]["slime#1838"] == [[0, 1], [2, 3, 4, 5, 6], [], []]
    given = next(given for given in CASES if given["name"] == WITHOUT_GIANTS)
    assert any(
        "an empty micro-batch" in said for said in broken(given, named(found, WITHOUT_GIANTS, "plain"))
    )
    ours = found["overlay"]["helper"]["slime#1838"]
    assert all(ours)
    assert len(ours) == 4


def test_the_cure_wants_more_micro_batches_than_there_are_samples(
    report: Callable[[str], dict[str, Any]],
) -> None:
    found = report(CURED)
    for given, ranks in pairs(found, "plain"):
        if given["name"] in {"no room to round up", *(one["name"] for one in IMPOSSIBLE)}:
            assert all("k_partitions" in rank["message"] for rank in ranks)
