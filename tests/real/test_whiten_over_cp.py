"""whiten-over-cp on four gloo ranks: slime's own advantages, and its fork's, with CP 1, 2 and 4."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
from checks import SEED
from slime_ranks import HANGS, MILES, folder, on_ranks

import overlay

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["folder"]

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.real,
    pytest.mark.by_variant("slime.whiten-over-cp", revision="slime"),
]

#: After 0.3.1, with the change of slime#2235.
FIXED = "624b824a898"
RELEASES = (
    "v0.2.0", "v0.2.0.post1", "v0.2.1", "v0.2.2", "v0.2.3", "v0.2.4", "286750aa3", "v0.3.0", "v0.3.1", MILES,
)  # fmt: skip
#: Of advantages of about one, float32's.
TOLERANCE = 1e-5


@pytest.mark.parametrize("revision", RELEASES)
def test_advantages_are_those_of_one_process(folder: Path) -> None:
    found = dict(on_ranks(folder, "whiten_cases", "whiten-over-cp"))
    masked = found.pop("masked, cp2")
    assert {rank["error"] for rank in masked} == {"ValueError"}
    assert all("loss masks of all ranks are empty" in rank["message"] for rank in masked)
    assert len(found) == 3 * 4 * 2
    for name, ranks in found.items():
        for rank in ranks:
            assert rank is not None, (SEED, name)
            assert "message" not in rank, (SEED, name, rank)
            assert rank["finite"]
            assert rank["error"] <= TOLERANCE, (SEED, name, rank)
    # There were ranks without a token.
    assert any(rank["tokens"] == 0 for rank in found["late, cp4, rewards"])


@functools.cache
def alone(folder: Path, case: str) -> list[Any]:
    """Return what the ranks make of a case without the patch."""
    (ranks,) = on_ranks(folder, "whiten_cases", WHITEN_CASE=case, COLLECTIVE_TIMEOUT=HANGS).values()
    return ranks


still_wrong = pytest.mark.xfail(strict=True, reason="once this passes, slime.whiten-over-cp has had its day")

by_the_last = pytest.mark.nightly("v0.3.1 stands for it", revision=("v0.2.4",))


@by_the_last
@pytest.mark.parametrize(
    "revision",
    [*(pytest.param(revision, marks=still_wrong) for revision in ("v0.2.4", "v0.3.1", MILES)), FIXED],
)
def test_upstream_alone_whitens_over_all_ranks(folder: Path) -> None:
    assert all(rank["error"] <= TOLERANCE for rank in alone(folder, "plain, cp2, rewards"))


@pytest.mark.parametrize("revision", [FIXED])
def test_where_slime_does_so_itself_it_is_left_alone(folder: Path) -> None:
    verdicts = {item.patch: item.verdict for item in overlay.plan("all", str(folder)).verdicts}
    assert verdicts["slime.whiten-over-cp"] == "not-needed"
    assert all(rank["error"] <= TOLERANCE for rank in alone(folder, "late, cp2, rewards"))


@by_the_last
@pytest.mark.parametrize("revision", ["v0.2.4", "v0.3.1", MILES])
def test_upstream_alone_waits_for_a_rank_without_a_token(folder: Path) -> None:
    assert any("trace" in rank for rank in alone(folder, "late, cp2, rewards") if rank)


@pytest.mark.parametrize("revision", ["v0.3.1"])
def test_upstream_alone_loses_the_variance_of_large_advantages(folder: Path) -> None:
    ranks = alone(folder, "plain, cp1, large rewards")
    assert any(not rank["finite"] or rank["error"] > 0.01 for rank in ranks)
