"""scripts/bench: what it measures, on which clock, and when it fails."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from benches import _audit, _call, _timing, costs

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The default of scripts/bench: a target that is met, one that is not, and what cannot be measured."""

    def broken(_turns: int) -> list[_timing.Row]:
        raise RuntimeError("no verl here")

    row = _timing.Row("good", "ms", 10.0, 12.0, 2.0, 1.5, 15.0)
    bad = row._replace(name="bad", target=1.0)
    found = {"good": (lambda _: [row], 3), "bad": (lambda _: [bad], 3), "broken": (broken, 1)}
    monkeypatch.setattr(costs, "BENCHMARKS", found)
    return costs


def test_a_missed_target_is_said_and_what_cannot_be_measured_is_a_failure(
    bench: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["good", "bad"]) == 0
    good, bad = capsys.readouterr().out.splitlines()[-2:]
    assert good.split()[-1] == "ok"
    assert "1.20" in good
    assert bad.split()[-1] == "MISSED"
    assert bench.main([]) == 1
    assert "broken could not be measured: no verl here" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["fast"], ["--turns", "0"]])
def test_bench_refuses_what_it_does_not_know(
    bench: Any, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        bench.main(arguments)
    assert "error:" in capsys.readouterr().err


def test_bench_measures_patches_that_are_applied() -> None:
    names = [row.name for row in _call.measure(1)]
    assert len(names) == 5
    assert all("plain call" in name for name in names)


def test_run_time_can_be_told_to_use_the_wall_clock() -> None:
    timing = _timing
    # What a process sleeps is no time of the processor, however slow that is.
    sleeps = timing.interpreter("-c", "import time; time.sleep(1)")
    works = timing.interpreter("-c", "import time\nwhile time.process_time() < 1: pass")
    assert timing.run_time(sleeps, wall=True) >= 1
    assert timing.run_time(sleeps) < timing.run_time(works)


@pytest.fixture
def audit(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark of an audit, with a list of what it does in place of its measurements."""
    module: Any = _audit
    module.calls = []

    def run_time(command: list[str], *, wall: bool = False) -> float:
        module.calls.append(("audit" if command == module.AUDIT else "empty", wall))
        return 0.25

    monkeypatch.setattr(module, "run_time", run_time)
    monkeypatch.setattr(module, "evict", lambda paths: module.calls.append(len(paths)))
    return module


def test_bench_evicts_before_every_audit_and_looks_at_the_wall(audit: Any) -> None:
    if not audit.can_evict():
        pytest.skip("there is no posix_fadvise")
    (row,) = audit.measure(2)
    assert row.name == "overlay audit, cold, wall clock / empty interpreter"
    assert (row.measured, row.held, row.target) == (250, "measured", 1000)
    count = len(audit.files())
    assert audit.calls == [("empty", True), count, ("audit", True), count, ("audit", True), ("empty", True)]
    names = {path.name for path in audit.files()}
    assert names >= {"engine.py", "cpu_engine.py", "fix.py", "wrappers.py", "specifiers.py"}
    assert {path.suffix for path in audit.files()} == {".py", ".pyc"}


def test_bench_of_an_audit_that_cannot_be_cold_does_not_say_that_it_is(
    audit: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    (row,) = audit.measure(1)
    assert row.name.startswith("overlay audit, warm, wall clock / ")
    assert "warm" in capsys.readouterr().err
    assert audit.calls == [("empty", True), 0, ("audit", True)]


def test_evicted_files_are_still_there(tmp_path: Path) -> None:
    module = _audit
    if not module.can_evict():
        pytest.skip("there is no posix_fadvise")
    path = tmp_path / "module.py"
    path.write_text("x = 1\n")
    module.evict([path])
    assert path.read_text() == "x = 1\n"
