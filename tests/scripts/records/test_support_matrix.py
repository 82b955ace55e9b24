"""scripts/records/support.py, on a record of its own and without a network."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from records import support
from sources.git_sources import FetchError

OLD = {
    "verl==0.8.0": {"verl.a": {"verdict": "apply", "check": "passed"}, "verl.b": {"verdict": "not-affected"}},
    "verl==0.9.0": {"verl.a": {"verdict": "apply"}},
}


@pytest.fixture
def matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, with a record of its own and releases that are there already."""
    module: Any = support
    monkeypatch.setattr(module, "RECORD", tmp_path / "support.json")
    monkeypatch.setattr(module, "LIST", tmp_path / "releases.txt")
    module.LIST.write_text("# Releases.\nverl==0.8.0\nverl==0.9.0  # the last\n")
    module._record.write(module.RECORD, OLD, depth=2)
    monkeypatch.setattr(module.releases, "fetch", lambda release: Path(release.name))
    monkeypatch.setattr(module, "audit", lambda _, folder: json.loads(json.dumps(OLD[str(folder)])))
    return module


def test_what_is_as_recorded_is_exit_code_0(matrix: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert matrix.recorded() == OLD
    assert matrix.main([]) == 0
    assert "0.8.0  applies, checked  not affected" in capsys.readouterr().out


def test_a_surprise_is_a_line_of_a_diff(
    matrix: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(matrix, "audit", lambda *_: {"verl.a": {"verdict": "unsupported", "reason": "why"}})
    assert matrix.main(["verl==0.9.0"]) == 1
    out = capsys.readouterr().out
    assert '-verl==0.9.0 verl.a: {"verdict": "apply"}' in out
    assert '+verl==0.9.0 verl.a: {"verdict": "unsupported", "reason": "why"}' in out
    assert "verl==0.8.0" not in out
    assert "UNSUPPORTED" in out
    # Nothing is written unless that is asked for, and then the rest stays.
    assert matrix.recorded() == OLD
    assert matrix.main(["verl==0.9.0", "--write"]) == 0
    assert matrix.recorded()["verl==0.8.0"] == OLD["verl==0.8.0"]
    assert matrix.recorded()["verl==0.9.0"]["verl.a"]["verdict"] == "unsupported"


def test_a_new_release_is_one_line(matrix: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix.LIST.write_text(f"{matrix.LIST.read_text()}verl==0.9.1\n")
    monkeypatch.setitem(OLD, "verl==0.9.1", {"verl.a": {"verdict": "fixed-upstream"}})
    assert matrix.main([]) == 1
    assert matrix.main(["--write"]) == 0
    assert list(matrix.recorded()) == ["verl==0.8.0", "verl==0.9.0", "verl==0.9.1"]


def test_a_check_that_fails_is_exit_code_1(
    matrix: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[Any] = []

    def run(folder: Path, patches: list[str]) -> dict[str, str]:
        ran.append((str(folder), patches))
        return dict.fromkeys(patches, "passed" if "0.8" in str(folder) else "it broke")

    monkeypatch.setattr(matrix._support_checks, "run", run)
    assert matrix.main(["--checks", "--write"]) == 1
    # Of patches that apply, and of no others.
    assert ran == [("verl==0.8.0", ["verl.a"]), ("verl==0.9.0", ["verl.a"])]
    out = capsys.readouterr().out
    assert "check failed: verl==0.9.0 verl.a: it broke" in out
    assert "CHECK FAILED" in out


def test_a_release_that_cannot_be_had_stays_as_recorded(
    matrix: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fetch(release: Any) -> Path:
        raise FetchError("no index")

    monkeypatch.setattr(matrix.releases, "fetch", fetch)
    assert matrix.main(["--write"]) == 0
    assert "verl==0.8.0: not fetched, and left as it is recorded: no index" in capsys.readouterr().out
    assert matrix.recorded() == OLD


def test_a_release_that_is_not_listed_is_refused(matrix: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        matrix.main(["verl==7.0"])
    assert "verl==7.0: not in releases.txt" in capsys.readouterr().err


def test_one_patch_is_looked_at_alone(matrix: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []

    def run(folder: Path, patches: list[str]) -> dict[str, str]:
        ran.append(patches)
        return dict.fromkeys(patches, "passed")

    monkeypatch.setattr(matrix._support_checks, "run", run)
    monkeypatch.setattr(matrix, "load_patches", lambda: {"verl.c": None})
    row = {"verl.a": {"verdict": "unsupported"}, "verl.c": {"verdict": "apply"}}
    monkeypatch.setattr(matrix, "audit", lambda *_: json.loads(json.dumps(row)))
    assert matrix.main(["--checks", "--write", "--patch", "verl.c", "verl==0.9.0"]) == 0
    assert ran == [["verl.c"]]
    # What is recorded of other patches is not touched.
    new = {"verl.a": {"verdict": "apply"}, "verl.c": {"verdict": "apply", "check": "passed"}}
    assert matrix.recorded() == {**OLD, "verl==0.9.0": new}


def test_what_was_found_is_written_even_if_the_rest_is_not_waited_for(
    matrix: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(release: Any) -> Path:
        if release.name == "verl==0.9.0":
            raise KeyboardInterrupt
        return Path(release.name)

    monkeypatch.setattr(matrix.releases, "fetch", fetch)
    monkeypatch.setattr(matrix, "audit", lambda *_: {"verl.a": {"verdict": "superseded"}})
    with pytest.raises(KeyboardInterrupt):
        matrix.main(["--write"])
    assert matrix.recorded() == {**OLD, "verl==0.8.0": {"verl.a": {"verdict": "superseded"}}}


def test_a_patch_that_there_is_not_is_refused(matrix: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        matrix.main(["--patch", "verl.none"])
    assert "there is no patch 'verl.none'" in capsys.readouterr().err


def test_a_check_is_the_contract_of_a_patch(
    matrix: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks, asked = matrix._support_checks, []

    def outcomes(folders: list[Path], jobs: list[Any], seed: str) -> list[tuple[str, str]]:
        asked.append((folders, jobs))
        return [("holds", ""), ("wrong", "a sample is lost")]

    monkeypatch.setattr(checks, "CONTRACTS", {"verl.a": None, "verl.b": None})
    monkeypatch.setattr(checks, "outcomes", outcomes)
    found = checks.run(tmp_path, ["verl.a", "verl.b", "verl.without"])
    assert asked == [([tmp_path], [("verl.a", "", ""), ("verl.b", "", "")])]
    assert found == {"verl.a": "passed", "verl.b": f"wrong: a sample is lost (seed {checks.SEED})"}
    assert checks.run(tmp_path, ["verl.without"]) == {}


def test_what_needs_triton_is_checked_with_it(
    matrix: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks, asked = matrix._support_checks, []

    def outcomes(folders: list[Path], jobs: list[Any], seed: str) -> list[tuple[str, str]]:
        asked.append((folders, [patch for patch, _, _ in jobs]))
        without = [("holds", ""), ("raises", "RuntimeError: No module named 'triton'")]
        return without if len(jobs) > 1 else [("wrong", "a row is lost")]

    monkeypatch.setattr(checks, "CONTRACTS", {"verl.a": None, "verl.b": None})
    monkeypatch.setattr(checks, "outcomes", outcomes)
    monkeypatch.setattr(checks.fetch_release, "fetch", lambda pin: tmp_path / pin)
    found = checks.run(tmp_path, ["verl.a", "verl.b"])
    with_triton = [tmp_path, tmp_path / checks.TRITON]
    assert asked == [([tmp_path], ["verl.a", "verl.b"]), (with_triton, ["verl.b"])]
    assert found == {"verl.a": "passed", "verl.b": f"wrong: a row is lost (seed {checks.SEED})"}

    def fetch(pin: str) -> Path:
        raise checks.fetch_release.FetchError(pin)

    # Without an index it is not run, which is said.
    monkeypatch.setattr(checks.fetch_release, "fetch", fetch)
    assert checks.run(tmp_path, ["verl.a", "verl.b"])["verl.b"] == checks.NOT_RUN


def test_a_check_that_cannot_be_started_is_none_that_passed(
    matrix: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = importlib.import_module("tortures._start_contracts")
    (tmp_path / "runner.py").write_text("raise SystemExit('no torch')")
    monkeypatch.setattr(start, "RUNNER", tmp_path / "runner.py")
    found = matrix._support_checks.run(tmp_path, ["verl.fast-partitioner"])
    assert found["verl.fast-partitioner"].startswith("no torch (seed ")


def test_a_head_is_a_row_and_an_image_a_block(
    matrix: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    image = "slime image v1 = slime v1.0 + megatron 0123abcd + docker/patch/megatron.patch + TE 2.10"
    matrix.LIST.write_text(f"verl==0.8.0\nverl main = verl 0123abcd\n{image}\n")
    monkeypatch.setitem(OLD, "verl main", {"verl.a": {"verdict": "expired", "reason": "why"}})
    found = {"slime.a": {"verdict": "apply"}, "verl.a": {"verdict": "unsupported", "reason": "why"}}
    monkeypatch.setitem(OLD, "slime image v1", found)
    assert matrix.main(["--write"]) == 0
    capsys.readouterr()
    assert matrix.main(["--recorded"]) == 0
    assert capsys.readouterr().out == (
        "verl           a                 b\n"
        "0.8.0          applies, checked  not affected\n"
        "main 0123abcd  EXPIRED           -\n\n"
        f"{image}\n"
        "  UNSUPPORTED  verl.a\n"
        "  applies      slime.a\n"
    )
