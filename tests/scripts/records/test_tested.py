"""scripts/records/tested.py on two patches and small trees: nothing is fetched, and no contract run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fake_upstream import PROJECT, write_files

from overlay.desk.prove.prove import HOLDS, WRONG
from overlay.model.settings import ALONE
from overlay.patch import Contract, Patch, one_target, replaced, variant
from overlay.source.table import TABLE_FILE, Row
from records import _support_print, tested
from sources import releases
from sources.releases import Release

SITE = "fakeup.core:scale"
PATCH = Patch(
    id="fakeup.scale", summary="s", why="w", upstream=(),
    targets=one_target(PROJECT, variant("1", replaced(SITE, lambda original, _module: original))),
)  # fmt: skip
ROW = Row(patch=PATCH.id, target="fakeup", verdict="apply", variant="1", sites={SITE: "1"}, on={"x": ["two"]})
OLD = "def scale(value):\n    return value * 2\n"
NEW = "def scale(value):\n    return value * 3\n"


class World(NamedTuple):
    """A list of sources, a table, and what contracts are said to find."""

    folder: Path
    listed: list[Release]
    #: By source: on upstream alone, and with the patch.
    outcomes: dict[str, tuple[str, str]]
    runs: list[tuple[str, str]]

    def source(self, name: str, text: str, alone: str = WRONG, ours: str = HOLDS) -> None:
        """Add a source with a text of the module."""
        files = {"fakeup/__init__.py": "", "fakeup/core.py": text, "fakeup/version.txt": "1.0"}
        write_files(self.folder / name, files)
        self.listed.append(Release(name))
        self.outcomes[name] = alone, ours

    def table(self) -> dict[str, tuple[str, str]]:
        """Return what the written table says, by source."""
        path = self.folder / "patches" / "fakeup" / TABLE_FILE
        rows = tested.read("fakeup").rows if path.exists() else []
        return {name: (row.means, row.shown) for row in rows for name in row.sources()}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    found = World(tmp_path, [], {}, [])

    def run(source: tested.Source, jobs: Any) -> list[tuple[str, str]]:
        found.runs.extend((source.name, how) for _, how, _ in jobs)
        return [(found.outcomes[source.name][how != ALONE], "") for _, how, _ in jobs]

    (tmp_path / "patches" / "fakeup").mkdir(parents=True)
    monkeypatch.setattr(tested, "PATCHES", tmp_path / "patches")
    monkeypatch.setattr(tested, "run", run)
    monkeypatch.setattr(tested, "everything", lambda: {PATCH.id: PATCH})
    monkeypatch.setattr(tested, "load_patches", lambda: {PATCH.id: PATCH})
    monkeypatch.setattr(tested, "contract_of", lambda _: Contract(check=lambda _: ""))
    monkeypatch.setattr(tested, "of_code", lambda _: "code")
    monkeypatch.setattr("overlay.desk.prove.rows.of_code", lambda _: "code")
    monkeypatch.setattr(releases, "read", lambda: found.listed)
    monkeypatch.setattr(
        releases, "available", lambda listed, _: [(one, tmp_path / one.name) for one in listed]
    )
    return found


def test_a_row_is_written_for_what_was_run_and_nothing_without_write(world: World) -> None:
    world.source("one", OLD)
    assert tested.main([PATCH.id, "--judged"]) == 1
    assert world.table() == {}
    assert tested.main([PATCH.id, "--judged", "--write"]) == 0
    assert world.table() == {"one": ("apply 1", "passed")}
    world.runs.clear()
    assert tested.main([]) == 0
    assert world.runs == []


def test_what_upstream_alone_keeps_is_not_needed(world: World) -> None:
    world.source("one", OLD, alone=HOLDS)
    assert tested.main(["--write"]) == 0
    assert world.table() == {"one": ("not-needed", "alone")}


def test_a_source_that_is_alike_joins_without_a_run(world: World) -> None:
    world.source("one", OLD)
    tested.main([PATCH.id, "--judged", "--write"])
    world.runs.clear()
    world.source("two", f"{OLD}\n\ndef other():\n    pass\n")
    assert tested.main(["--write"]) == 0
    assert world.runs == []
    assert world.table() == dict.fromkeys(("one", "two"), ("apply 1", "passed"))
    assert len(tested.read("fakeup").rows) == 1


def test_a_replaced_site_that_is_new_is_refused_until_somebody_has_read_it(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.source("one", OLD)
    tested.main([PATCH.id, "--judged", "--write"])
    world.source("two", NEW)
    capsys.readouterr()
    assert tested.main(["--write"]) == 1
    said = capsys.readouterr().out
    assert f"refused: {PATCH.id} on two: {SITE} is new, and nobody has read it" in said
    assert "-    return value * 2\n+    return value * 3" in said
    assert set(world.table()) == {"one"}
    assert tested.main([PATCH.id, "--judged", "--write"]) == 0
    assert world.table()["two"] == ("apply 1", "passed")


def test_a_source_on_which_the_contract_fails_stays_unknown_and_is_said(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.source("one", OLD, ours=WRONG)
    assert tested.main(["--write"]) == 1
    assert f"{PATCH.id} on one: unknown: the contract {WRONG}" in capsys.readouterr().out
    assert world.table() == {}


def test_what_somebody_has_read_is_written_with_the_reason(world: World) -> None:
    world.source("one", OLD)
    assert (
        tested.main([PATCH.id, "--on", "one", "--read", "not-needed", "--why", "it is right", "--write"]) == 0
    )
    assert world.table() == {"one": ("not-needed", "read")}
    assert tested.read("fakeup").rows[0].evidence == "it is right"
    assert world.runs == []


@pytest.mark.parametrize("bad", [["--judged"], [PATCH.id, "--read", "apply"], ["no.patch"], ["--on", "x"]])
def test_bad_usage_is_exit_code_2(world: World, bad: list[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        tested.main(bad)
    assert raised.value.code == 2


def test_a_row_of_other_code_is_run_again_and_dropped_if_it_does_not_hold(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world.source("one", OLD)
    tested.main([PATCH.id, "--judged", "--write"])
    monkeypatch.setattr(tested, "of_code", lambda _: "other")
    monkeypatch.setattr("overlay.desk.prove.rows.of_code", lambda _: "other")
    assert tested.main(["--write"]) == 0
    assert [row.code for row in tested.read("fakeup").rows] == ["other"]
    monkeypatch.setattr(tested, "of_code", lambda _: "third")
    world.outcomes["one"] = WRONG, WRONG
    capsys.readouterr()
    assert tested.main(["--write"]) == 1
    assert f"FAILS: {PATCH.id} on one, apply 1" in capsys.readouterr().out
    assert world.table() == {}


def test_rows_that_differ_in_their_sources_alone_are_one() -> None:
    rows = [
        ROW.replace(date="2026-02-01"),
        ROW.replace(on={"x": ["one"]}, date="2026-01-01"),
        ROW.replace(on={"y": ["three"]}),
    ]
    (found,) = tested.together(rows, ["one", "two", "three"])
    assert found.on == {"x": ["one", "two"], "y": ["three"]}
    assert found.date == "2026-02-01"
    assert len(tested.together([ROW, ROW.replace(evidence="another")], ["two"])) == 2


def test_two_rows_that_say_different_things_of_equal_files_are_refused() -> None:
    other = ROW.replace(verdict="not-needed", variant="", on={"x": ["one"]})
    (line,) = tested.contradictions([ROW, other], [PATCH], {})
    assert line == f"refused: {PATCH.id} on one: not-needed; as two: apply 1"
    assert tested.contradictions([ROW, other.replace(on={"y": ["one"]})], [PATCH], {}) == []


def test_what_differs_is_a_line_for_each_source() -> None:
    now = ROW.replace(on={"x": ["two"], "y": ["three"]})
    assert tested.difference([ROW], [ROW]) == []
    (line,) = tested.difference([ROW], [now])
    assert line.startswith(f"+ {PATCH.id} fakeup three: apply 1")
    (line,) = tested.difference([ROW], [ROW.replace(verdict="unknown-source", variant="")])
    assert line.startswith("* ")
    assert " -> unknown-source" in line
    assert tested.difference([now], [ROW])[0].startswith("- ")


def test_what_is_printed_has_a_cell_for_each_source_and_what_has_had_its_day() -> None:
    listed = [Release("fakeup==1"), Release("fakeup==2"), Release("fakeup main", ("fakeup abc",))]
    gone = ROW.replace(verdict="not-needed", variant="", on={"y": ["fakeup==2", "fakeup main"]})
    other = PATCH.replace(id="fakeup.other")
    patches = {one.id: one for one in (PATCH, other)}
    table = _support_print.cells([ROW.replace(on={"x": ["fakeup==1"]}), gone], patches, listed)
    assert [row[PATCH.id] for row in table.values()] == ["apply", "not-needed", "not-needed"]
    assert {row[other.id] for row in table.values()} == {"unknown-source"}
    assert _support_print.over(table, patches, listed) == [PATCH.id]
