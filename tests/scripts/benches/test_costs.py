"""scripts/bench: what it measures, on which clock, and when it fails."""

from __future__ import annotations

from typing import Any

import pytest

from benches import _call, _timing, costs


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


def test_bench_measures_patches_that_are_applied() -> None:
    names = [row.name for row in _call.measure(1)]
    assert len(names) == 5
    assert all("plain call" in name for name in names)
