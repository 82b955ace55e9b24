"""slime.whiten-over-cp on four gloo ranks: slime's own advantages, in every release, with CP 1, 2 and 4."""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import overlay
from checks import UPSTREAMS
from overlay.compat.ranks.launcher import run_cases

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.real,
    pytest.mark.by_source("slime.whiten-over-cp", revision="slime"),
]

SEED = os.environ.setdefault("OVERLAY_TEST_SEED", str(secrets.randbelow(2**31)))
#: After 0.3.1, with the change of slime#2235.
FIXED = "624b824a898"
RELEASES = (
    "v0.2.0", "v0.2.0.post1", "v0.2.1", "v0.2.2", "v0.2.3", "v0.2.4", "286750aa3", "v0.3.0", "v0.3.1",
)  # fmt: skip
#: Of advantages of about one, float32's.
TOLERANCE = 1e-5


def on_ranks(folder: Path, **options: Any) -> dict[str, list[Any]]:
    with tempfile.TemporaryDirectory() as scratch:
        program = str(UPSTREAMS / "slime_loss_main.py")
        return run_cases(
            4, "whiten_cases", Path(scratch), timeout=200, program=program, release=folder, **options
        )


@pytest.mark.parametrize("revision", RELEASES)
def test_advantages_are_those_of_one_process(revision: str, slime: Callable[[str], Path]) -> None:
    found = on_ranks(slime(revision), patches="slime.whiten-over-cp")
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


def plain(folder: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return what the ranks of slime alone make of a case."""
    monkeypatch.setenv("WHITEN_CASE", case)
    monkeypatch.setenv("COLLECTIVE_TIMEOUT", "15")
    (ranks,) = on_ranks(folder, overlay=False).values()
    return ranks


still_wrong = pytest.mark.xfail(strict=True, reason="once this passes, slime.whiten-over-cp has had its day")

by_the_last = pytest.mark.nightly("v0.3.1 stands for it", revision=("v0.2.4",))


@by_the_last
@pytest.mark.parametrize(
    "revision",
    [pytest.param("v0.2.4", marks=still_wrong), pytest.param("v0.3.1", marks=still_wrong), FIXED],
)
def test_upstream_alone_whitens_over_all_ranks(
    revision: str, slime: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = plain(slime(revision), "plain, cp2, rewards", monkeypatch)
    assert all(rank["error"] <= TOLERANCE for rank in ranks)


def test_where_slime_does_so_itself_it_is_left_alone(
    slime: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = slime(FIXED)
    verdicts = {item.patch: item.verdict for item in overlay.plan("all", str(folder)).verdicts}
    assert verdicts["slime.whiten-over-cp"] == "fixed-upstream"
    ranks = plain(folder, "late, cp2, rewards", monkeypatch)
    assert all(rank["error"] <= TOLERANCE for rank in ranks)


@by_the_last
@pytest.mark.parametrize("revision", ["v0.2.4", "v0.3.1"])
def test_upstream_alone_waits_for_a_rank_without_a_token(
    revision: str, slime: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = plain(slime(revision), "late, cp2, rewards", monkeypatch)
    assert any("trace" in rank for rank in ranks if rank)


def test_upstream_alone_loses_the_variance_of_large_advantages(
    slime: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = plain(slime("v0.3.1"), "plain, cp1, large rewards", monkeypatch)
    assert any(not rank["finite"] or rank["error"] > 0.01 for rank in ranks)
