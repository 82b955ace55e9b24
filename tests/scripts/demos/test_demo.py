"""The demonstration: what it calls right, its exit code, and one real run of it."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import pytest
from command_line import python

from demos import dynamic_cp as demo

#: What verl 0.8.0 does to the gradient, case by case; the last case crashes it.
PLAIN = (1 / 16, 1 / 16, 1 / 16, 1 / 4)

NAN, INF = float("nan"), float("inf")
CASE = "five sequences for four ranks"
Result = dict[str, Any]
RIGHT: Result = {"sizes": [1], "ratio": 1.0, "error": 1e-7, "reported": 3.0, "true": 3.0}
RAISED: Result = {"raised": "AssertionError: no tensor", "at": 2.0}
GONE: Result = {"raised": "ConnectionError: gone", "at": 3.0}


@pytest.fixture(autouse=True)
def seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the demonstration set the seed of its ranks, and put back that of the tests."""
    monkeypatch.setenv("OVERLAY_TEST_SEED", "7")


def on_ranks(rank: int | None = None, **changed: Any) -> list[Result | None]:
    """Return right results of four ranks, of which one (or all) differ in something."""
    return [{**RIGHT, **(changed if rank in (None, each) else {})} for each in range(4)]


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (on_ranks(error=9e-7), "right"),
        (on_ranks(reported=3 + 2e-6), "right"),
        ([RIGHT, *on_ranks(reported=None)[1:]], "right"),  # with overlay one rank reports
        *((on_ranks(rank, error=error), "wrong") for rank in (None, 3) for error in (1e-6, NAN, INF, None)),
        *((on_ranks(reported=reported), "wrong") for reported in (3.1, -3.0, NAN, INF, None)),
        *((on_ranks(true=true), "wrong") for true in (NAN, 0.0, INF, None)),
        ([RIGHT, GONE, RIGHT, RAISED], "crashes: rank 3: AssertionError: no tensor"),
        ([RAISED, None, None, None], "crashes: rank 0: AssertionError: no tensor"),
        ([None, RIGHT, RIGHT, RIGHT], "crashes: ranks do not come back"),
    ],
)
def test_the_verdict_is_that_of_the_worst_rank(found: list[Result | None], verdict: str) -> None:
    row = demo._row(CASE, found)
    assert row["verdict"] == demo._cells(row)[-1] == verdict


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "1"), (0.25 * (1 + 1e-8), "1/4"), (0.1014, "0.1014"), (0.0, "0"), (-0.5, "-1/2"), (NAN, "nan")],
)
def test_factor_is_a_simple_fraction_or_digits(value: float, text: str) -> None:
    assert demo._factor(value) == text


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (on_ranks(), "right"),
        (on_ranks(2, error=NAN), "wrong"),
        ([RIGHT, RIGHT, RIGHT, RAISED], "crashes: rank 3: AssertionError: no tensor"),
    ],
)
@pytest.mark.parametrize("place", [1, 4])
def test_exit_code_is_0_only_if_every_case_is_right_with_overlay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: list[Result | None], verdict: str, place: int
) -> None:
    names = list(demo.CASES)

    def pretend(*_: object, overlay: bool, only: list[str], **_named: object) -> dict[str, Any]:
        known = {name: found if overlay and name == names[place] else on_ranks() for name in only}
        # After a case that they do not survive, ranks run none.
        crashes = overlay and verdict.startswith("crashes") and names[place] in only
        last = names[place] if crashes else only[-1]
        return {name: known[name] for name in only[: only.index(last) + 1]}

    monkeypatch.setattr(demo, "run_cases", pretend)
    monkeypatch.setattr(demo, "_version", lambda name: "1")
    file = tmp_path / "figures.json"
    right = verdict == "right"
    assert demo.main(["--seed", "7", "--json", str(file)]) == (0 if right else 1)
    written = json.loads(file.read_text())
    assert written["right"] is right
    verdicts = [row["verdict"] for row in written["cases"]["overlay"]]
    assert verdicts == [verdict if name == names[place] else "right" for name in names]


def test_ranks_that_never_start_are_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **_named: object) -> None:
        raise RuntimeError("no module named verl")

    monkeypatch.setattr(demo, "run_cases", broken)
    with pytest.raises(SystemExit, match="no module named verl"):
        demo.main(["--seed", "7"])


@pytest.mark.distributed
@pytest.mark.real
def test_demo_shows_what_is_wrong_without_overlay_and_right_with_it(tmp_path: Path) -> None:
    seed = secrets.randbelow(2**31)
    file = tmp_path / "figures.json"
    done = python(str(demo.__file__), "--json", str(file), "--seed", str(seed), seconds=540)
    assert done.returncode == 0, f"seed {seed}: {done.stderr[-4000:]}"
    figures = json.loads(file.read_text())
    assert (figures["seed"], figures["right"]) == (seed, True)
    *plain, last = figures["cases"]["plain"]
    assert [row["ratio"] for row in plain] == pytest.approx(PLAIN, rel=1e-6), seed
    assert {row["verdict"] for row in plain} == {"wrong"}
    assert last["verdict"].startswith("crashes: rank ")
    assert [row["verdict"] for row in figures["cases"]["overlay"]] == ["right"] * 5
    for row in figures["cases"]["overlay"]:
        assert row["ratio"] == pytest.approx(1, rel=1e-6), (seed, row)
