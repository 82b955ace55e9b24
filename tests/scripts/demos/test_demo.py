"""The demonstration: what it calls right, its exit code, and one real run of it."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from demos import dynamic_cp as demo

if TYPE_CHECKING:
    from pathlib import Path

#: What verl 0.8.0 does to the gradient, case by case; the last case crashes it.
PLAIN = (1 / 16, 1 / 16, 1 / 16, 1 / 4)

NAN, INF = float("nan"), float("inf")
CASE = "five sequences for four ranks"
Result = dict[str, Any]
RIGHT: Result = {"sizes": [1], "ratio": 1.0, "error": 1e-7, "reported": 3.0, "true": 3.0}
RAISED: Result = {"raised": "AssertionError: no tensor", "at": 2.0}


@pytest.fixture(autouse=True)
def seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the demonstration set the seed of its ranks, and put back that of the tests."""
    monkeypatch.setenv("OVERLAY_TEST_SEED", "7")


def on_ranks(rank: int | None = None, **changed: Any) -> list[Result | None]:
    """Return right results of four ranks, of which one (or all) differ in something."""
    return [{**RIGHT, **(changed if rank in (None, each) else {})} for each in range(4)]


def with_rank(rank: int, result: Result | None) -> list[Result | None]:
    return [result if each == rank else RIGHT for each in range(4)]


@pytest.mark.parametrize(
    "found",
    [
        on_ranks(),
        on_ranks(error=9e-7),
        on_ranks(reported=3 + 2e-6),
        [RIGHT, *on_ranks(reported=None)[1:]],  # with overlay one rank reports
    ],
)
def test_right_is_what_is_within_the_tolerance_on_every_rank(found: list[Result | None]) -> None:
    assert demo._row(CASE, found)["verdict"] == "right"


@pytest.mark.parametrize("rank", [None, 0, 3])
@pytest.mark.parametrize("error", [1e-6, NAN, INF, None])
def test_gradient_of_any_rank_can_be_wrong(rank: int | None, error: float | None) -> None:
    row = demo._row(CASE, on_ranks(rank, error=error))
    assert not row["error"] < demo.TOLERANCE  # the row shows the worst
    assert row["verdict"] == demo._cells(row)[-1] == "wrong"


@pytest.mark.parametrize("reported", [3.1, -3.0, NAN, INF, None])
@pytest.mark.parametrize("true", [3.0, NAN, 0.0, None, INF])
def test_loss_can_be_wrong(reported: float | None, true: float | None) -> None:
    row = demo._row(CASE, on_ranks(reported=reported, true=true))
    assert row["verdict"] == demo._cells(row)[-1] == "wrong"


@pytest.mark.parametrize("missing", RIGHT)
def test_row_without_a_figure_is_not_right_and_can_be_shown(missing: str) -> None:
    row = demo._row(CASE, [{name: value for name, value in RIGHT.items() if name != missing}] * 4)
    assert demo._cells(row)[-1] == row["verdict"]
    assert (row["verdict"] == "right") == (missing in {"sizes", "ratio"})  # these are shown, not judged


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (
            [RIGHT, {"raised": "ConnectionError: gone", "at": 3.0}, RIGHT, RAISED],
            "rank 3: AssertionError: no tensor",
        ),
        ([RAISED, None, None, None], "rank 0: AssertionError: no tensor"),
        (with_rank(0, None), "ranks do not come back"),
        ([None] * 4, "ranks do not come back"),
    ],
)
def test_the_first_rank_to_raise_is_named_and_a_missing_one_is_a_crash(
    found: list[Result | None], said: str
) -> None:
    row = demo._row(CASE, found)
    assert row["verdict"] == f"crashes: {said}"
    assert demo._cells(row)[2:6] == ("-", "-", "-", "-")


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
        (with_rank(3, RAISED), "crashes: rank 3: AssertionError: no tensor"),
        (with_rank(1, None), "crashes: ranks do not come back"),
    ],
)
@pytest.mark.parametrize("place", [1, 4])
def test_exit_code_is_0_only_if_every_case_is_right_with_overlay(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    found: list[Result | None],
    verdict: str,
    place: int,
) -> None:
    names = list(demo.CASES)

    def pretend(*_: object, overlay: bool, only: list[str], **_named: object) -> dict[str, Any]:
        known = {name: found if overlay and name == names[place] else on_ranks() for name in only}
        # After a case that they do not survive, ranks run none.
        last = (
            names[place] if overlay and verdict.startswith("crashes") and names[place] in only else only[-1]
        )
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
    assert verdict in capsys.readouterr().out


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
    clean = {key: value for key, value in os.environ.items() if not key.startswith("OVERLAY")}
    done = subprocess.run(
        [sys.executable, str(demo.__file__), "--json", str(file), "--seed", str(seed)],
        env=clean, capture_output=True, text=True, timeout=540, check=False,
    )  # fmt: skip
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
