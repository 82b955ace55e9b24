"""scripts/test: what runs, and what a failure comes to."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from testing import suite


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program of scripts/test, whose checks and pytest are a list of calls."""
    module: Any = suite
    module.calls = []
    monkeypatch.setattr(module, "ruff", lambda root, *arguments: module.calls.append(arguments[0]) or 0)
    monkeypatch.setattr(module, "typed_tree", lambda root: root)
    monkeypatch.setattr(module, "imports", lambda *_: module.calls.append("imports") or 0)
    monkeypatch.setattr(module, "mypy", lambda *_: (1, "one.py:1: error\n"))
    monkeypatch.setattr(module, "suites", lambda root: module.calls.append("suites") or 1)
    monkeypatch.setattr(module.os, "chdir", lambda path: None)

    def main(arguments: list[str], plugins: list[Any]) -> int:
        module.calls.append(("pytest", arguments))
        plugins[0].finish()
        module.calls.append(plugins[0].failed)
        return 0

    monkeypatch.setattr(pytest, "main", main)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("TESTS_ONCE", raising=False)  # and as it was, afterwards
    return module


def test_without_arguments_everything_runs_and_a_failure_counts(
    checks: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    before = dict(os.environ)
    assert checks.main([]) == 1
    assert checks.calls == ["check", "format", "imports", ("pytest", checks.whole_run()), ["mypy"]]
    assert dict(os.environ) == before
    assert capsys.readouterr().out.endswith("--- pytest\n--- mypy\none.py:1: error\n")


def test_the_nightly_variant_runs_the_suites_of_upstreams_too(checks: Any) -> None:
    assert checks.main(["--nightly"]) == 1
    failed = ["upstream's suites", "mypy"]
    assert checks.calls == ["check", "format", "imports", "suites", ("pytest", checks.whole_run()), failed]


def test_what_takes_long_is_begun_first_in_turns_and_nothing_is_left_out(tmp_path: Path) -> None:
    long = [
        "real/test_a.py",
        "workers/test_w.py",
        "real/test_b.py",
        "torture/test_t.py",
        "distributed/in/test_c.py",
    ]
    for name in (*long, "overlay/model/test_b.py", "new/test_n.py", "test_t.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "__pycache__").mkdir()
    assert suite.in_order(tmp_path) == [f"tests/{name}" for name in (*long, "new", "overlay", "test_t.py")]


def test_linters_and_types_or_pytest_run_alone(checks: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert checks.main(["--lint"]) == 1
    assert checks.calls == ["check", "format", "imports"]
    assert capsys.readouterr().out.endswith("one.py:1: error\nfailed: mypy\n")
    checks.calls.clear()
    assert checks.main(["-k", "shape"]) == 0
    assert checks.calls == [("pytest", ["-k", "shape"]), []]
