"""scripts/records/chores.py, where everything is done and where one thing is not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from overlay.catalogue.deferred import facts
from overlay.catalogue.registry import load_patches
from overlay.patch import Contract
from records import _support_checks, chores, patches, retire, support
from sources import releases
from sources.git_sources import FetchError
from sources.releases import Release

ROOT = Path(__file__).resolve().parents[3]
ID = "megatron.recompute"
PACKAGE = "overlay.patches.megatron.recompute"
RELEASES = ("megatron-core==0.16.1", "verl==0.7.1")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout in which all is done, and releases that are there."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path / "pyproject.toml")
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    (tmp_path / "changes").mkdir()
    (tmp_path / "changes" / "new.md").write_text(f"- `{ID}` is a folder.\n")
    (tmp_path / "patches.md").write_text(patches.section(load_patches()[ID]))
    record = {RELEASES[0]: {ID: {"verdict": "apply", "check": "passed"}}, RELEASES[1]: {}}
    (tmp_path / "support.json").write_text(json.dumps(record))
    monkeypatch.setattr(chores, "ROOT", tmp_path)
    monkeypatch.setattr(patches, "PAGE", tmp_path / "patches.md")
    monkeypatch.setattr(support, "RECORD", tmp_path / "support.json")
    cells = {RELEASES[0]: {ID: {"verdict": "apply"}}, RELEASES[1]: {}}
    monkeypatch.setattr(support, "audit", lambda release, _: cells[release.name])
    monkeypatch.setattr(
        releases, "for_patch", lambda _, missing: ((Release(name), tmp_path) for name in RELEASES)
    )
    monkeypatch.setattr(_support_checks, "run", lambda _, names: dict.fromkeys(names, "passed"))
    monkeypatch.setattr(
        retire, "judged", lambda tests: [(name, "0.16.1", retire.NEEDED, "") for name in tests]
    )
    return tmp_path


def missing(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, str]:
    """Return what is said to be missing, by chore."""
    status = chores.main([ID, *words])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 9
    found = {line[9:31].strip(): line[31:] for line in lines if line.startswith(chores.MISSING)}
    assert status == bool(found)
    return found


def test_what_is_done_is_exit_code_0(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert missing(capsys) == {}
    assert missing(capsys, "--quick") == {}


def lacking(file: str, old: str, new: str = "") -> Any:
    def change(place: Path, _: pytest.MonkeyPatch) -> None:
        text = (place / file).read_text()
        assert old in text
        (place / file).write_text(text.replace(old, new))

    return change


def outcome(said: str) -> Any:
    def change(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_support_checks, "run", lambda _, names: dict.fromkeys(names, said))

    return change


def removal(*states: str) -> Any:
    def change(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        rows = [(ID, "0.16.1", state, "") for state in states]
        monkeypatch.setattr(retire, "judged", lambda _: rows)

    return change


def without_contract(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chores, "CONTRACTS", dict[str, Contract]())


def without_index(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chores, "index_of", lambda _: dict[str, Any]())


def of_no_form(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patch = load_patches()[ID].replace(revision=0)
    monkeypatch.setattr(chores, "load_patches", lambda: {ID: patch})
    monkeypatch.setattr(chores, "index_of", lambda _: {ID: facts(patch)})
    monkeypatch.setattr(patches, "section", lambda _: "")


@pytest.mark.parametrize(
    ("change", "name", "words", "command"),
    [
        (of_no_form, "is of the form", "revision: the first one is 1", "test_schema.py"),
        (without_index, "patches/_index.py", "out of date", "./scripts/matrix index"),
        (
            lacking("pyproject.toml", '"overlay.patches.megatron.recompute",'),
            "pyproject.toml",
            "lacks it",
            ID[9:],
        ),
        (lacking("patches.md", "upstream"), "docs/patches.md", "something else", "./scripts/matrix patches"),
        (lacking("changes/new.md", ID), "changes/*.md", "names it", "changes/megatron-recompute.md"),
        (outcome("wrong: so"), "contract", "0.16.1: wrong: so", f"./scripts/matrix --checks --patch {ID}"),
        (outcome("not run: triton is not installed"), "contract", "hold nowhere", "--checks"),
        (without_contract, "contract", "there is no contract", "--checks"),
        (lacking("support.json", '"apply"', '"unsupported"'), "compat/support.json", RELEASES[0], "--write"),
        (lacking("support.json", ', "check": "passed"'), "compat/support.json", RELEASES[0], "--write"),
        (removal(retire.NEEDED, retire.READY), "upstream alone fails", retire.READY, "matrix retire"),
        (removal(retire.BROKEN), "upstream alone fails", retire.BROKEN, "matrix retire"),
        (removal(retire.CURED, retire.UNKNOWN), "upstream alone fails", "on no release", "matrix retire"),
    ],
)
def test_what_is_missing_is_named_with_what_does_it(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: Any,
    name: str,
    words: str,
    command: str,
) -> None:
    change(place, monkeypatch)
    found = missing(capsys)
    assert list(found) == [name]
    assert words in found[name]
    assert command in found[name]


def test_the_record_is_believed_where_nothing_is_run(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome("wrong: so")(place, monkeypatch)
    removal(retire.READY)(place, monkeypatch)
    assert missing(capsys, "--quick") == {}
    lacking("support.json", '"passed"', '"wrong: then"')(place, monkeypatch)
    assert "0.16.1: wrong: then" in missing(capsys, "--quick")["contract"]


def test_an_unknown_patch_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        chores.main(["megatron.nothing"])
    assert raised.value.code == 2
    assert "there is no patch 'megatron.nothing'" in capsys.readouterr().err


def test_releases_are_those_of_the_projects_of_a_patch(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        Release("megatron-core==0.16.1"),
        Release("verl==0.8.0"),
        Release("slime==v0.3.1"),
        Release("slime main", ("slime 624b824a8",)),
        Release("slime image v1", ("slime v1", "megatron 48406695", "TE 2.8")),
    ]

    def fetch(release: Release) -> Path:
        if release.name == "verl==0.8.0":
            raise FetchError("no network")
        return Path(release.name)

    monkeypatch.setattr(releases, "read", lambda: lines)
    monkeypatch.setattr(releases, "fetch", fetch)
    gone: dict[str, str] = {}
    found = [release.name for release, _ in releases.for_patch(load_patches()[ID], gone)]
    assert found == ["megatron-core==0.16.1", "slime image v1"]
    assert gone == {"verl==0.8.0": "no network"}
