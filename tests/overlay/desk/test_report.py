"""What a job's ranks left: who agrees, who differs, and who is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import report_inputs as made
from command_line import unknown_verl

from overlay import cli
from overlay.desk import report as job
from overlay.errors import ReportError

ID = "verl.sft-balance"


def read(folder: Path, *statuses: dict[str, Any], world: int | None = None) -> job.Job:
    fresh = folder / f"job-{len(list(folder.iterdir()))}"
    return job.read(str(made.job(fresh, *statuses, world=world)))


def facts(found: job.Job) -> list[str]:
    return [one.fact for one in found.differences]


def test_a_rank_that_waits_for_its_modules_is_no_difference(tmp_path: Path) -> None:
    site = unknown_verl(tmp_path / "site")
    one, other, begun = made.status(site), made.status(site), made.status(site)
    made.patch_of(one, ID).update(state="applied", reason="")
    made.patch_of(other, ID).update(state="waiting", reason="", verdict=None)
    # One of its two modules has been imported.
    place = {"site": "m:f", "project": "verl", "state": "applied"}
    made.patch_of(begun, ID).update(state="waiting", reason="", sites=[place])
    found = read(tmp_path, other, one, begun)
    assert found.differences == ()
    # And one that knows more speaks for all.
    assert made.patch_of(found.groups[0].status.to_dict(), ID)["verdict"] is not None
    made.patch_of(one, ID).update(state="failed")
    assert facts(read(tmp_path, other, one, begun)) == [ID]


@pytest.mark.parametrize(
    ("change", "fact", "said"),
    [
        ({"version": "9.9"}, "overlay", "9.9"),
        ({"code": {"overlay": "feed" * 16}}, "overlay", "1, code feedfeedfeed"),
        ({"code": {"pack acme": "feed" * 16}}, "pack acme", "code feedfeedfeed"),
        ({"enabled": False}, "overlay", "not enabled"),
        ({"python": "3.12.1"}, "Python", "3.12.1"),
        ({"strict": True}, "strict", "yes"),
        ({"pinned": "sha256:1"}, "pinned to", "sha256:1"),
        ({"half_patched": ["x"]}, "half-patched: x", "yes"),
        ({"state": "failed", "reason": "why"}, ID, "failed (why)"),
        ({"state": "reverted", "reason": ""}, ID, "reverted"),
    ],
)
def test_a_rank_that_differs_is_named_with_what_it_says(
    tmp_path: Path, change: dict[str, Any], fact: str, said: str
) -> None:
    site = unknown_verl(tmp_path / "site")
    status, other = made.status(site), made.status(site)
    (made.patch_of(other, ID) if "state" in change else other).update(change)
    found = read(tmp_path, status, other, status)
    assert [group.name for group in found.groups] == ["ranks 0,2", "rank 1"]
    (one,) = found.to_dict()["differences"]
    assert (one["fact"], one["said"][0][0], one["said"][1]) == (fact, "ranks 0,2", ["rank 1", said])
    assert found.gaps() == []


def test_versions_and_sources_that_differ_are_named(tmp_path: Path) -> None:
    one, other = (made.status(unknown_verl(tmp_path / name)) for name in ("one", "other"))
    target = made.patch_of(other, ID)["verdict"]["targets"][0]
    target["findings"][0]["digest"] = "feedfeedfeed"
    found = read(tmp_path, one, other)
    assert facts(found) == [f"{ID} source of {target['findings'][0]['site']}"]
    for patch in other["patches"]:
        for target in (patch["verdict"] or {"targets": ()})["targets"]:
            target["version"] = "0.8.1" * (target["project"] == "verl")
    assert "verl version" in facts(read(tmp_path, one, other))


def test_ranks_of_two_selections_differ_in_that_and_not_in_each_patch(tmp_path: Path) -> None:
    more = made.status(tmp_path)
    names = [one["patch"] for one in more["patches"]]
    fewer = {**more, "patches": more["patches"][:2], "selection": names[:2]}
    found = read(tmp_path, {**more, "selection": names[:4]}, fewer)
    (one,) = found.to_dict()["differences"]
    assert one["fact"] == "selection"
    assert one["said"] == [
        ["rank 0", f"2 that all have, and {names[2]}, {names[3]}"],
        ["rank 1", "2 that all have"],
    ]


def test_processes_that_share_a_rank_or_have_none_are_told_apart(tmp_path: Path) -> None:
    folder = made.job(tmp_path / "job", made.status(tmp_path))
    made.process(folder, "0", rank=0, pid=8)  # the actor and the critic
    made.process(folder, "0", rank=1)
    made.process(folder, "0", host="driver")
    (group,) = job.read(str(folder)).groups
    assert group.name == (
        "rank 1, rank 0 (process 7 on node), rank 0 (process 8 on node), process 7 on driver (no rank)"
    )


def test_nobody_speaks_for_a_rank_that_left_no_ledger(tmp_path: Path) -> None:
    folder = made.job(tmp_path / "job", made.status(tmp_path), world=4)
    made.process(folder, "0", rank=1, world=4, ended=False)
    found = job.read(str(folder))
    assert (found.missing, found.to_dict()["cut_short"]) == ((2, 3), ["rank 1"])
    assert "There is no ledger of ranks 2-3.\nKilled or still" in found.table()


def test_a_folder_in_which_nothing_can_be_read_says_why(tmp_path: Path) -> None:
    folder = made.job(tmp_path / "job", made.status(tmp_path))
    (folder / "ledger-0.json").write_text('{"patches": ')
    with pytest.raises(ReportError, match=r"ledger-0\.json: Expecting"):
        job.read(str(folder))


@pytest.mark.parametrize(
    ("folder", "said"),
    [("none", "is not a folder: name the OVERLAY_LEDGER_DIR"), (".", "no readable ledger in .")],
)
def test_what_cannot_be_read_is_exit_code_2(
    folder: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report", folder]) == 2
    assert said in capsys.readouterr().err


def test_what_is_not_in_place_is_said_first_with_the_reason(tmp_path: Path) -> None:
    status = made.status(unknown_verl(tmp_path / "site"))
    named = made.patch_of(status, ID)
    assert (named["state"], named["verdict"]["verdict"]) == ("skipped", "unknown-source")
    named["reason"] = "it is new here"
    found = read(tmp_path, status)
    assert found.to_dict()["groups"][0]["refused"][ID] == "it is new here"
    text = found.table()
    assert f"  NOT in place: {ID}: it is new here\n" in text
    assert text.index("NOT in place") < text.index("  waiting: ")


def test_what_the_job_meets_comes_first_and_what_is_not_fixed_before_what_is(tmp_path: Path) -> None:
    def met(defect: str, state: str, harm: str) -> dict[str, str]:
        way_out = "" if state == "mended" else "set y"
        return {
            "defect": defect, "harm": harm, "state": state, "why": "x is on", "way_out": way_out, "patch": "",
        }  # fmt: skip

    site = unknown_verl(tmp_path / "site")
    told = [met("a.fixed", "mended", "silent-wrong"), met("a.slow", "open", "slow")]
    told.append(met("a.wrong", "open", "silent-wrong"))
    found = read(tmp_path, made.status(site, met=told), made.status(site, met=[]))
    assert [one["defect"] for one in found.to_dict()["met"]] == ["a.wrong", "a.slow", "a.fixed"]
    table = found.table()
    assert "  a.wrong (silent-wrong): x is on -> set y\n" in table
    assert "  patched here: a.fixed\n" in table
    assert table.index("a.wrong") < table.index("a.slow") < table.index("a.fixed")
