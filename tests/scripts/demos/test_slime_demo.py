"""The demonstration of slime's step: what it calls right, what it holds a case to, and what it shows."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import slime_step
from command_line import git
from slime_step_cases import Case

from demos import slime as demo
from sources import slime_images
from sources.git_sources import FetchError

NAN, INF = math.nan, math.inf
CASE = Case("a case", {"v0.2.4": ("right",)}, ((4, 2), (6, 3)), timeout=7)
RIGHT: dict[str, Any] = {
    "micro_batches": [[30, 34], [64]],
    "budget": 64,
    "peak": 0,
    "advantages": 1e-7,
    "ratio": 1.0,
    "gradient": 1e-6,
}


def judged(*found: dict[str, Any], case: Case = CASE) -> slime_step.Row:
    """Return the row of a case that has the samples that were read."""
    read = [part for rank in found for part in rank.get("micro_batches") or []]
    lengths = tuple((length, 1) for part in read for length in part)
    return slime_step.judged(replace(case, lengths=lengths), list(found))


def verdict(*found: dict[str, Any], case: Case = CASE) -> str:
    return judged(*found, case=case).verdict


WAITS, TIMED_OUT = {"waiting": True}, {"raised": "RuntimeError: Timed out waiting 7000ms for recv", "at": 1.0}
NAN_LOSS = {"raised": "RuntimeError: Unexpected result nan (", "at": 0.5}
CRASH = {"raised": "KeyError: 'nanny'", "at": 0.5}
HANGS, CRASHES = "hangs (given up after 7 s)", "crashes: KeyError: 'nanny'"


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([RIGHT, RIGHT], "right"),
        *(
            ([RIGHT, {**RIGHT, what: error}], "wrong")
            for what in ("advantages", "gradient")
            for error in (1e-5, 0.5, NAN, INF, None)
        ),
        ([{**RIGHT, "micro_batches": [[65]]}, RIGHT], "right"),  # a single long sample is no fault
        ([{**RIGHT, "micro_batches": [[40, 40]], "gradient": 1.0}], "over budget, wrong"),
        # The first rank that raises says how it ended.
        ([RIGHT, WAITS], HANGS),
        ([{"raised": "RuntimeError: closed by peer", "at": 2.0}, TIMED_OUT], HANGS),
        ([CRASH, TIMED_OUT], CRASHES),
        ([CRASH, WAITS], CRASHES),
        ([NAN_LOSS], "NaN, at which Megatron stops"),
    ],
)
def test_the_verdict_is_that_of_the_worst_rank(found: list[dict[str, Any]], words: str) -> None:
    assert verdict(*found) == words


def test_what_is_over_the_budget_is_counted_by_the_ranks_that_read_for_themselves() -> None:
    row = judged({**RIGHT, "micro_batches": [[40, 40], [30, 35], [64]]}, RIGHT)
    assert (row.verdict, row.over) == ("over budget", (2, 5, 1.25))
    assert demo.cells(row)[1] == "2 of 5, +25%"
    row = judged(RIGHT, {**RIGHT, "micro_batches": None})
    assert row.over == (0, 2, 0.0)
    assert demo.cells(row)[1:4] == ("none of 2", "1.0e-07", "1.0e-06")


@pytest.mark.parametrize("read", [[], [[30, 34]], [[30, 34], [64], [30]], [[30, 34], [65]]])
def test_each_sample_is_trained_on_once(read: list[list[int]]) -> None:
    case = replace(CASE, lengths=((64, 1), (34, 1), (30, 1)))
    assert slime_step.judged(case, [RIGHT]).verdict == "right"
    assert slime_step.judged(case, [{**RIGHT, "micro_batches": read}]).verdict == "not each sample once"


def test_memory_is_counted_in_the_logits_of_each_rank() -> None:
    case = Case("memory", {"v0.2.4": ("needs",)}, ((4, 2),), memory=2.25)
    logits = 64 * case.sizes.vocabulary * 4
    small = {**RIGHT, "micro_batches": [[9]], "peak": 12 * case.sizes.vocabulary * 4}
    assert slime_step.judged(case, [{**RIGHT, "peak": 2 * logits}, small]).peak == 2.0
    assert verdict({**RIGHT, "peak": 2.25 * logits}, case=case) == "right"
    assert verdict({**RIGHT, "peak": 3 * logits}, case=case) == "needs 3.0 logits"


def rows(verdict: str, micro_batches: Any = None) -> dict[str, slime_step.Row]:
    return {CASE.name: slime_step.Row(CASE, verdict, micro_batches=micro_batches or [[[1]]])}


@pytest.mark.parametrize(
    ("alone", "ours", "said"),
    [
        (rows("right"), rows("right"), []),
        (rows("wrong"), rows("right"), ["v0.2.4 alone, a case: wrong, and not right"]),
        (rows("right"), rows("wrong"), ["v0.2.4 with overlay, a case: wrong"]),
        (rows("right"), rows("right", [[[2]]]), ["v0.2.4 with overlay, a case: other micro-batches"]),
    ],
)
def test_what_is_not_as_claimed_is_said(alone: Any, ours: Any, said: list[str]) -> None:
    found = slime_step.unlike_claimed("v0.2.4", alone, ours)
    assert [line.partition(", where")[0] for line in found] == said


@pytest.mark.parametrize(("said", "status"), [([], 0), (["it is off"], 1)])
def test_the_exit_status_says_whether_all_is_as_claimed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], said: list[str], status: int
) -> None:
    found = {("v0.2.4", mode): rows("right") for mode in demo.MODES}
    monkeypatch.setattr(slime_images, "fetch", Path)
    monkeypatch.setattr(demo, "run_all", lambda *_: found)
    monkeypatch.setattr(demo, "unlike_claimed", lambda *_: said)
    assert demo.main(["--release", "v0.2.4", "--seed", "3"]) == status
    printed = capsys.readouterr()
    assert "seed 3." in printed.out
    assert printed.err == "".join(f"NOT AS CLAIMED: {line}\n" for line in said)


def test_commits_come_from_the_network_without_their_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = tmp_path / "host/THUDM/slime"
    host.mkdir(parents=True)
    git(host, "init", "--quiet")
    for release in slime_images.RELEASES:
        (host / "train.py").write_text(release)
        git(host, "add", ".")
        git(host, "commit", "--quiet", f"--message={release}")
        git(host, "tag", release)
    monkeypatch.setattr(slime_images, "CLONES", tmp_path / "clones")
    monkeypatch.setattr(slime_images, "HOST", f"file://{tmp_path}/host")
    monkeypatch.setenv("SLIME_REPO", "")  # which is put back, whatever it is set to
    assert slime_images.script("v0.2.4") == b"v0.2.4"
    got = slime_images.from_network("slime")
    assert git(got, "log", "--format=%s", "v0.3.1") == "v0.3.1"
    monkeypatch.setattr(slime_images, "HOST", f"file://{tmp_path}/nowhere")
    with pytest.raises(FetchError, match="let MEGATRON_REPO name a clone of it"):
        slime_images.from_network("megatron")
