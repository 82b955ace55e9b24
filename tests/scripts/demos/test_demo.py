"""The demonstration: what it calls right, its exit code, and one real run of it."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from demos import dynamic_cp

if TYPE_CHECKING:
    from pathlib import Path

TIMEOUT = 540.0
#: What verl 0.8.0 does to the gradient, case by case; the last case crashes it.
PLAIN = (1 / 16, 1 / 16, 1 / 16, 1 / 4)

NAN, INF = float("nan"), float("inf")
CASE = "five sequences for four ranks"
Result = dict[str, Any]
RIGHT: Result = {"sizes": [1], "ratio": 1.0, "error": 1e-7, "reported": 3.0, "true": 3.0}
RAISED: Result = {"raised": "AssertionError: no tensor", "at": 2.0}


@pytest.fixture
def demo() -> Any:
    return dynamic_cp


def on_ranks(rank: int | None = None, **changed: Any) -> dict[int, Result]:
    """Return right results of four ranks, of which one (or all) differ in something."""
    return {each: {**RIGHT, **(changed if rank in (None, each) else {})} for each in range(4)}


def without(*ranks: int) -> dict[int, Result]:
    return {rank: result for rank, result in on_ranks().items() if rank not in ranks}


# The verdict ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "found",
    [
        on_ranks(),
        on_ranks(error=9e-7),
        on_ranks(reported=3 + 2e-6),
        {**on_ranks(reported=None), 0: RIGHT},  # with overlay one rank reports
    ],
)
def test_right_is_what_is_within_the_tolerance_on_every_rank(demo: Any, found: dict[int, Result]) -> None:
    assert demo._row(CASE, found, "exit")["verdict"] == "right"


@pytest.mark.parametrize("rank", [None, 0, 2, 3])
@pytest.mark.parametrize("error", [1e-6, 0.5, NAN, INF, None])
def test_gradient_of_any_rank_can_be_wrong(demo: Any, rank: int | None, error: float | None) -> None:
    row = demo._row(CASE, on_ranks(rank, error=error), "exit")
    assert row["verdict"] == "wrong"
    assert not row["error"] < demo.TOLERANCE  # the row shows the worst
    assert demo._cells(row)[-1] == "wrong"


@pytest.mark.parametrize(
    "changed",
    [
        {"reported": 3.1},
        {"reported": -3.0},
        {"reported": NAN},
        {"reported": INF},
        {"reported": None},
        {"true": NAN},
        {"true": 0.0},
        {"true": None},
        {"reported": INF, "true": INF},
    ],
)
def test_loss_can_be_wrong(demo: Any, changed: Result) -> None:
    row = demo._row(CASE, on_ranks(**changed), "exit")
    assert row["verdict"] == "wrong"
    assert demo._cells(row)[-1] == "wrong"


@pytest.mark.parametrize("missing", RIGHT)
def test_row_without_a_figure_is_not_right_and_can_be_shown(demo: Any, missing: str) -> None:
    found = {
        rank: {name: value for name, value in result.items() if name != missing}
        for rank, result in on_ranks().items()
    }
    row = demo._row(CASE, found, "exit")
    assert demo._cells(row)[-1] == row["verdict"]
    assert (row["verdict"] == "right") == (missing in {"sizes", "ratio"})  # these are shown, not judged


def test_first_rank_to_raise_is_named(demo: Any) -> None:
    found = {**on_ranks(), 1: {"raised": "ConnectionError: gone", "at": 3.0}, 3: RAISED}
    row = demo._row(CASE, found, "exit")
    assert row["verdict"] == "crashes: rank 3: AssertionError: no tensor"
    assert demo._cells(row)[2:6] == ("-", "-", "-", "-")


@pytest.mark.parametrize("found", [{}, without(0), without(1, 2)])
def test_missing_rank_is_a_crash_or_a_hang(demo: Any, found: dict[int, Result]) -> None:
    assert demo._row(CASE, found, "exit")["verdict"] == "crashes: no rank says why"
    assert demo._row(CASE, found, "timeout")["verdict"] == f"hangs for {demo.TIMEOUT:.0f} s"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"),
        (1 / 16, "1/16"),
        (0.25 * (1 + 1e-8), "1/4"),
        (0.1014, "0.1014"),
        (1 + 1e-5, "1"),
        (0.0, "0"),
        (-0.5, "-1/2"),
        (NAN, "nan"),
        (INF, "inf"),
        (-INF, "-inf"),
    ],
)
def test_factor_is_a_simple_fraction_or_digits(demo: Any, value: float, text: str) -> None:
    assert demo._factor(value) == text


# The exit code ----------------------------------------------------------------------------------------------


@pytest.fixture
def start(demo: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replace the start of the ranks by what they would have written, up to the first failure."""

    def prepare(**overlay: Any) -> None:
        def pretend(mode: str, folder: Path, cases: list[str], seed: int) -> str:
            assert seed == 7
            (folder / "log.txt").write_text("")
            for case in cases:
                found = overlay.get("found", on_ranks()) if (mode, case) == ("overlay", CASE) else on_ranks()
                for rank, result in found.items():
                    with (folder / f"rank{rank}.jsonl").open("a") as stream:
                        stream.write(json.dumps([case, result]) + "\n")
                if len(found) < 4 or any("raised" in result for result in found.values()):
                    return str(overlay.get("ended", "exit"))
            return "exit"

        monkeypatch.setattr(demo, "_start", pretend)
        monkeypatch.setattr(demo, "_version", lambda name: "1")

    return prepare


@pytest.mark.parametrize(
    ("found", "ended", "verdict"),
    [
        (on_ranks(), "exit", "right"),
        (on_ranks(error=0.5), "exit", "wrong"),
        (on_ranks(2, error=NAN), "exit", "wrong"),
        (on_ranks(reported=NAN), "exit", "wrong"),
        ({**on_ranks(), 3: RAISED}, "exit", "crashes: rank 3: AssertionError: no tensor"),
        (without(1), "exit", "crashes: no rank says why"),
        (without(1), "timeout", "hangs for 240 s"),
    ],
)
def test_exit_code_is_0_only_if_every_case_is_right_with_overlay(
    demo: Any,
    start: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    found: dict[int, Result],
    ended: str,
    verdict: str,
) -> None:
    start(found=found, ended=ended)
    file = tmp_path / "figures.json"
    right = verdict == "right"
    assert demo.main(["--seed", "7", "--json", str(file)]) == (0 if right else 1)
    written = json.loads(file.read_text())
    assert written["right"] is right
    verdicts = [row["verdict"] for row in written["cases"]["overlay"]]
    assert verdicts == ["right"] * (len(demo.CASES) - 1) + [verdict]
    assert verdict in capsys.readouterr().out.splitlines()[-4]


def test_ranks_that_never_start_are_a_message(demo: Any, start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(mode: str, folder: Path, cases: list[str], seed: int) -> str:
        (folder / "log.txt").write_text("no module named verl")
        return "exit"

    start()
    monkeypatch.setattr(demo, "_start", broken)
    with pytest.raises(SystemExit, match="no module named verl"):
        demo.main(["--seed", "7"])


# A real run -------------------------------------------------------------------------------------------------


@pytest.mark.distributed
@pytest.mark.real
def test_demo_shows_what_is_wrong_without_overlay_and_right_with_it(tmp_path: Path) -> None:
    seed = secrets.randbelow(2**31)
    file = tmp_path / "figures.json"
    command = [sys.executable, str(dynamic_cp.__file__), "--json", str(file), "--seed", str(seed)]
    clean = {key: value for key, value in os.environ.items() if not key.startswith("OVERLAY")}
    log = tmp_path / "log.txt"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, stdout=stream, stderr=subprocess.STDOUT, env=clean, start_new_session=True
        )
        try:
            status = process.wait(TIMEOUT)
        finally:
            if process.poll() is None:
                # It kills its ranks, which are a session of their own, if it is asked to end.
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()
    assert status == 0, f"seed {seed}: {log.read_text()[-4000:]}"
    figures = json.loads(file.read_text())
    assert (figures["seed"], figures["right"]) == (seed, True)
    *plain, last = figures["cases"]["plain"]
    assert [row["ratio"] for row in plain] == pytest.approx(PLAIN, rel=1e-6), seed
    assert {row["verdict"] for row in plain} == {"wrong"}
    assert last["verdict"].startswith("crashes: rank ")
    assert [row["verdict"] for row in figures["cases"]["overlay"]] == ["right"] * 5
    for row in figures["cases"]["overlay"]:
        assert row["ratio"] == pytest.approx(1, rel=1e-6), (seed, row)
