"""scripts/records/drift.py, on a small repository of its own: nothing is fetched, and no contract run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import git
from fake_upstream import MemoryTree

from overlay.desk.prove.rows import row_of
from overlay.patch import Calls, Patch, Project, one_target, replaced, variant
from overlay.source.decide import decide
from overlay.source.table import Row, Table
from records import drift
from records._drift_history import Repository
from sources import git_sources
from sources.releases import Release

DAY = 86400
#: 2026-01-01.
START = 1767225600


class History:
    """A repository that grows by a commit at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *command: str, day: float = 0) -> str:
        stamp = f"{int(START + day * DAY)} +0000"
        return git(self.folder, *command, GIT_AUTHOR_DATE=stamp, GIT_COMMITTER_DATE=stamp)

    def commit(self, day: float, **files: str | None) -> str:
        for name, text in files.items():
            path = self.folder / "lib" / f"{name}.py"
            path.parent.mkdir(exist_ok=True)
            path.unlink() if text is None else path.write_text(text)
        self.git("add", "-A")
        self.git("commit", "--quiet", "--allow-empty", "-m", f"day {day}", day=day)
        return self.git("rev-parse", "HEAD")


SOURCE = "def f():\n    return 1\ndef g():\n    f()\n"
LIB = Project(name="lib", distributions=("lib",), marker="lib.core", read_version=lambda _: "1.0")


PATCH = Patch(
    id="lib.fix",
    summary="",
    why="",
    upstream=(),
    targets=one_target(
        LIB,
        variant(
            "1", replaced("lib.core:f", lambda old, _: old), Calls(site="lib.core:g", callee="f", last=True)
        ),
    ),
)


def table() -> Table:
    """Return the row of the first source."""
    row = row_of(PATCH, PATCH.targets[0], MemoryTree({"lib/__init__.py": "", "lib/core.py": SOURCE}), "1.0")
    assert row is not None
    return Table([row])


@pytest.fixture
def history(tmp_path: Path) -> History:
    made = History(tmp_path / "repo")
    made.commit(-5, core=SOURCE)
    made.commit(-1, core="# laid out anew\n" + SOURCE)
    return made


def walked(history: History, days: float = 10, *, weekly: bool = False) -> Any:
    repository = Repository(history.folder)
    try:
        period = START, int(START + days * DAY)
        found = drift.walk(repository, "main", ("lib",), [PATCH], period, table(), weekly=weekly)
        return found["lib.fix"]
    finally:
        repository.close()


def test_the_share_of_days_and_what_ended_them(history: History) -> None:
    changed = history.commit(4, core=SOURCE.replace("1", "2"))
    history.commit(5, other="x = 1\n")
    history.commit(6, core="def f():\n    return 1\ndef g():\n    print()\n    f()\n")
    asked = history.commit(9, core="def f():\n    return 1\ndef g():\n    f()\n    print()\n")
    found = walked(history)
    assert [(one.verdict, one.days) for one in found.stretches] == [
        ("apply", 4),
        ("unknown-source", 2),
        ("apply", 3),
        ("unknown-source", 1),
    ]
    assert found.quiet == pytest.approx(0.7)
    assert [one.commit for one in found.stretches if one.verdict == "unknown-source"] == [changed, asked]
    assert "unknown digest" in found.stretches[1].reason
    assert "does not call f in each run as its last statement" in found.stretches[3].reason


def test_with_a_row_a_week_a_change_is_unknown_until_the_next_week(history: History) -> None:
    history.commit(4, core=SOURCE.replace("1", "2"))
    history.commit(8, other="x = 1\n")
    found = walked(history, weekly=True)
    assert [(one.verdict, one.days) for one in found.stretches] == [
        ("apply", 4),
        ("unknown-source", 4),  # until the first commit after the seventh day
        ("as-that-week", 2),
    ]


def test_a_frozen_table_has_what_was_out_by_then(history: History) -> None:
    history.git("tag", "v1.0", day=-1)
    younger = history.commit(2, core=SOURCE.replace("1", "2"))
    row = table().all[0]
    names = ["verl==1.0", "verl==9.9", "verl image 1", "verl main"]
    one = Table([Row(**{**vars(row), "on": {"a": names[:2], "b": names[2:3], "c": names[3:]}})])
    listed = [
        *(Release(name) for name in names[:2]),
        Release("verl image 1", ("verl 1.0", "megatron-core 0.16.1", "TE 2.8")),
        Release("verl main", (f"megatron {younger}",)),
    ]
    repository = Repository(history.folder)
    try:
        found = drift.out_by(repository, START, one, listed)
    finally:
        repository.close()
    assert [row.on for row in found.all] == [{"a": ["verl==1.0"], "b": ["verl image 1"]}]


def test_commits_of_a_branch_that_was_merged_are_not_the_history_of_main(history: History) -> None:
    history.git("checkout", "--quiet", "-b", "side")
    history.commit(1, core="def f():\n    return 3\n")
    history.commit(3, core=SOURCE)
    history.git("checkout", "--quiet", "main")
    history.commit(2, other="x = 1\n")
    history.git("merge", "--quiet", "--no-ff", "-m", "merge", "side", day=4)
    assert [one.verdict for one in walked(history).stretches] == ["apply"]


def test_a_file_that_goes_and_comes_back(history: History) -> None:
    history.commit(2, core=None, other="x = 1\n")
    history.commit(3, core=SOURCE)
    found = walked(history)
    assert [one.verdict for one in found.stretches] == ["apply", "not-installed", "apply"]
    assert found.quiet == 1


def test_a_commit_that_is_dated_back_takes_no_time(history: History) -> None:
    history.commit(4, core="def f():\n    return 2\n")
    history.commit(3, core=SOURCE)
    assert walked(history).quiet == 1


def test_a_commit_is_decided_on_again_only_if_it_changed_what_was_read(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in range(1, 6):
        history.commit(day, other=f"x = {day}\n")
    history.commit(7, core=SOURCE + "z = 1\n")
    asked: list[int] = []

    def counted(*given: Any) -> Any:
        asked.append(1)
        return decide(*given)

    monkeypatch.setattr(drift, "decide", counted)
    walked(history)
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["slime", "--repo", "{tmp}/gone"], "/gone is not there: give a clone of THUDM/slime"),
        (["slime", "--repo", "{tmp}/text"], "/text is no git bundle"),
        (["slime@nowhere", "--repo", "{repo}"], "no branch or commit 'nowhere'"),
        (["nobody"], "'nobody' is no project with a history"),
        (["slime"], "SLIME_REPO is not set"),
        (["slime", "--repo", "{repo}", "--until", "2020-01-01"], "no commit before the end"),
    ],
)
def test_bad_input_is_one_line(
    history: History,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.setenv("SLIME_REPO", "")
    monkeypatch.setattr(git_sources, "CLONES", tmp_path / "clones")
    (tmp_path / "text").write_text("no bundle")
    given = [word.format(tmp=tmp_path, repo=history.folder) for word in arguments]
    assert drift.main(given) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.endswith("...")]
    assert len(lines) == 1
    assert said in lines[0]


@pytest.mark.parametrize(
    "arguments", [["--until", "soon"], ["--days", "0"], ["slime", "verl", "--repo", "x"]]
)
def test_bad_usage_is_exit_code_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        drift.main(arguments)
    assert ended.value.code == 2


def test_a_bundle_will_do(
    history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLIME_REPO", "")
    monkeypatch.setattr(git_sources, "CLONES", tmp_path / "clones")
    bundle = tmp_path / "history.bundle"
    history.git("bundle", "create", "--quiet", str(bundle), "--all")
    assert drift.main(["slime", "--repo", str(bundle), "--until", "2026-01-10", "--days", "5"]) == 0
    out = capsys.readouterr().out
    assert "slime@main, 2026-01-06 to 2026-01-10" in out
    assert "slime.loss-memory" in out
