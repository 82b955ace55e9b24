"""What a job's ranks left: who agrees, who differs, who is missing, and what is said first."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import report_inputs as made
from command_line import unknown_verl
from fake_upstream import Upstream, triple

from overlay import cli
from overlay.desk.commands import OPT_IN
from overlay.desk.report import job, page
from overlay.desk.report.page import OUTCOMES, headline, outcome, view_of_group, view_of_plan
from overlay.errors import ReportError
from overlay.ledger import STATES
from overlay.runtime.engine import Engine
from overlay.source.source import Tree
from overlay.verdict import VERDICTS

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


def test_what_one_process_alone_knows_is_said_for_all(tmp_path: Path) -> None:
    """A rollout worker imports other modules than a trainer, which has the most verdicts."""
    site = unknown_verl(tmp_path / "site")
    trainer, rollout = made.status(site), made.status(site)
    for one in rollout["patches"]:
        one.update(state="waiting", reason="", verdict=None)
    for state, other in (("skipped", "a wrapper is there"), ("incomplete", "a list has it"), ("applied", "")):
        told: dict[str, Any] = {"state": state, "reason": other, "verdict": None, "sites": []}
        made.patch_of(trainer, ID).update(state="waiting", reason="", verdict=None)
        made.patch_of(rollout, ID).update(told)
        for order in ((trainer, rollout), (rollout, trainer)):
            found = read(tmp_path, *order)
            (group,) = found.groups
            assert made.patch_of(group.status.to_dict(), ID) == {"patch": ID, **told, "effect": None}
            assert f"{state}: " in found.table()
            known = [one.verdict is not None for one in group.status.patches]
            assert sum(known) == sum(one["verdict"] is not None for one in trainer["patches"])


def test_a_patch_that_is_in_place_in_some_of_its_modules_is_applied(tmp_path: Path) -> None:
    """As in the log: the others may belong to a program that this job does not run."""
    one = made.status(unknown_verl(tmp_path / "site"))
    effect = {"of": "call", "figures": [], "values": {}}
    waits = deepcopy(one)
    for status, states in ((one, "applied waiting"), (waits, "waiting waiting")):
        places = [
            {"site": f"m:{name}", "project": "verl", "state": state}
            for name, state in zip("fg", states.split(), strict=True)
        ]
        made.patch_of(status, ID).update(state="waiting", reason="", sites=places, effect=effect)
    for statuses, state in ((waits,), "waiting"), ((waits, one), "applied"):
        found = read(tmp_path, *statuses)
        (group,) = found.groups
        assert made.patch_of(group.status.to_dict(), ID)["state"] == state
        assert found.never() == [ID] * (state == "applied")


@pytest.mark.parametrize(
    ("change", "fact", "said"),
    [
        ({"version": "9.9"}, "overlay", "9.9"),
        ({"code": {"overlay": "feed" * 16}}, "overlay", "1, code feedfeedfeed"),
        ({"code": {"pack acme": "feed" * 16}}, "pack acme", "code feedfeedfeed"),
        ({"enabled": False}, "enabled at the end", "no"),
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


def disabled(status: dict[str, Any]) -> dict[str, Any]:
    """Return a ledger as it is after `disable()`, which keeps no settings of the session."""
    patches = [
        {**one, "state": "reverted"} if one["state"] == "applied" else one
        for one in deepcopy(status["patches"])
    ]
    return {**status, "enabled": False, "strict": False, "pinned": "", "selection": [], "patches": patches}


def test_ranks_that_all_disabled_are_compared_all_the_same(tmp_path: Path) -> None:
    site = unknown_verl(tmp_path / "site")
    applied = made.status(site, strict=True, pinned="sha256:1")
    made.patch_of(applied, ID).update(state="applied", reason="")
    off = disabled(applied)
    assert facts(read(tmp_path, off, off, off)) == []
    # Beside ranks that stay enabled, that is said once, and not of each patch and setting.
    assert facts(read(tmp_path, applied, off)) == ["enabled at the end"]

    refused = disabled(applied)
    made.patch_of(refused, ID).update(state="skipped", reason="a wrapper is there")
    found = read(tmp_path, off, refused, off, off)
    assert [group.name for group in found.groups] == ["ranks 0,2-3", "rank 1"]
    assert found.to_dict()["differences"] == [
        {
            "fact": ID,
            "said": [
                ["ranks 0,2-3", "applied (taken out since)"],
                ["rank 1", "skipped (a wrapper is there)"],
            ],
        }
    ]
    assert "do not agree" in headline({}, found).text
    incomplete = deepcopy(off)
    made.patch_of(incomplete, ID).update(reason="was incomplete: somebody holds it")
    (one,) = read(tmp_path, off, incomplete).to_dict()["differences"]
    assert one["said"][1] == ["rank 1", "incomplete (taken out since)"]
    # Also if only one of them stays enabled.
    assert facts(read(tmp_path, applied, refused)) == ["enabled at the end", ID]

    fewer = {**off, "patches": [one for one in off["patches"] if one["patch"] != ID]}
    assert facts(read(tmp_path, off, fewer)) == ["selection"]
    assert facts(read(tmp_path, off, {**off, "version": "9.9"})) == ["overlay"]
    another = deepcopy(off)
    for patch in another["patches"]:
        for target in (patch["verdict"] or {"targets": ()})["targets"]:
            target["version"] = "0.8.1"
    assert facts(read(tmp_path, off, another)) == ["verl version"]


def test_versions_and_sources_that_differ_are_named(tmp_path: Path) -> None:
    one, other = (made.status(unknown_verl(tmp_path / name)) for name in ("one", "other"))
    target = made.patch_of(other, ID)["verdict"]["targets"][0]
    target["findings"][0]["digest"] = "feedfeedfeed"
    found = read(tmp_path, one, other)
    assert facts(found) == [f"{ID} source of {target['findings'][0]['site']}"]
    assert found.differences[0].is_source
    for patch in other["patches"]:
        for target in (patch["verdict"] or {"targets": ()})["targets"]:
            target["version"] = "0.8.1" * (target["project"] == "verl")
    found = read(tmp_path, one, other)
    assert "verl version" in facts(found)
    assert " differ in verl version." in headline({}, found).text


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
    found = job.read(str(folder))
    assert found.gaps()[-1].startswith("Fewer ledgers of rank 1 than of other ranks: a process left none")
    (group,) = found.groups
    assert group.name == (
        "rank 1, rank 0 (process 7 on node), rank 0 (process 8 on node), process 7 on driver (no rank)"
    )


def test_nobody_speaks_for_a_rank_that_left_no_ledger(tmp_path: Path) -> None:
    folder = made.job(tmp_path / "job", made.status(tmp_path), world=4)
    made.process(folder, "0", rank=1, world=4, ended=False)
    found = job.read(str(folder))
    assert (found.missing, found.to_dict()["cut_short"]) == ((2, 3), ["rank 1"])
    said = headline({"a": "applied"}, found)
    assert said.tone == "care"
    assert said.text.startswith("There is no ledger of ranks 2-3. Killed or still")
    assert "The 2 processes here agree." in said.text


def test_a_folder_in_which_nothing_can_be_read_says_why(tmp_path: Path) -> None:
    folder = made.job(tmp_path / "job", made.status(tmp_path))
    (folder / "ledger-0.json").write_text('{"patches": ')
    with pytest.raises(ReportError, match=r"ledger-0\.json: Expecting"):
        job.read(str(folder))
    (folder / "ledger-0.json").unlink()
    os.mkfifo(folder / "ledger-0.json")  # nobody writes to it: to open it would wait for ever
    with pytest.raises(ReportError, match=r"ledger-0\.json: it is no regular file"):
        job.read(str(folder))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ("applied", ["applied", "applied waiting", "applied not-selected", "applied opt-in"]),
        ("apply", ["apply", "apply not-installed"]),
        ("waiting", ["waiting", "apply waiting", "waiting not-selected", "waiting opt-in"]),
        ("not-selected", ["not-selected", "apply not-selected"]),
        ("not-installed", ["not-installed", "not-installed waiting"]),
        ("not-needed", ["not-needed", "not-needed waiting"]),
        ("incomplete", ["incomplete", "applied incomplete"]),
        ("conflict", ["conflict", "applied conflict"]),
        ("failed", ["failed", "failed conflict"]),
        ("not known", ["", "another-overlay's"]),
    ],
)
def test_what_became_of_a_patch(found: str, words: list[str]) -> None:
    assert {outcome(said.split()) for said in words} == {found}


def test_every_state_and_verdict_comes_to_something() -> None:
    words = ({*STATES} - {"skipped"}) | {*VERDICTS, OPT_IN}
    assert {outcome([word]) for word in words} == OUTCOMES.keys() - {"not known"}
    assert {name for name, tone in OUTCOMES.items() if tone == "plain"} == page.LISTED.keys()


def test_what_only_its_id_selects_is_not_to_be_applied(
    upstream: Upstream, engines: Callable[..., Engine]
) -> None:
    named = upstream.patch({"fakeup.core:Engine.fixed": triple}, name="fakeup.reading").replace(opt_in=True)
    engine, tree = engines(upstream.patch(), named), Tree()
    view = view_of_plan("here", engine.plan_each(tree))
    assert {name: outcome([view.word(name)]) for name in engine.known()} == {
        "fakeup.scale": "apply",
        "fakeup.reading": "opt-in",
    }


def test_agreement_comes_first(tmp_path: Path) -> None:
    one, other = (made.status(tmp_path, python=f"3.12.{number}", news=1) for number in range(2))
    outcomes = {**dict.fromkeys("abcd", "applied"), **dict.fromkeys("efg", "waiting")}
    alike = read(tmp_path, one, one, one)
    assert [(group.name, group.processes) for group in alike.groups] == [("ranks 0-2", 3)]
    said = headline(outcomes, alike)
    assert (said.tone, said.tally()) == ("good", "4 applied \u00b7 3 waiting")
    assert said.text == "All 3 processes agree. 4 patches are applied, and none was refused."
    said = headline(outcomes, read(tmp_path, one, other, one))
    assert said.tone == "bad"
    assert said.text.startswith("The 3 processes do not agree: ranks 0,2 and rank 1 differ in Python. ")
    assert said.text.endswith("4 patches are applied on some, and none was refused.")
    said = headline(outcomes, read(tmp_path, one))
    assert said.text.startswith("One process. 4 patches")
    # What nobody has selected is no patch of the job.
    assert view_of_group(alike.groups[0]).word("verl.another") == "not-selected"


@pytest.mark.parametrize(
    ("outcomes", "tone", "text"),
    [
        ({"a": "not-needed"}, "plain", "No patch would be applied here."),
        ({"a": "apply"}, "good", "1 patch would be applied here, and none is refused."),
        ({"a": "apply", "b": "conflict"}, "bad", "b is asked for, and not applied."),
        (dict.fromkeys("abcdef", "reverted"), "care", "a, b, c, d and 2 more are not completely applied."),
        ({"a": "waiting"}, "plain", "Every patch still waits: none of the modules that "),
    ],
)
def test_the_outcome_of_installations(outcomes: dict[str, str], tone: str, text: str) -> None:
    found = headline(outcomes, None)
    assert (found.tone, found.text[: len(text)]) == (tone, text)


def test_a_job_is_half_patched_also_if_all_say_so(tmp_path: Path) -> None:
    one = made.status(unknown_verl(tmp_path / "site"), half_patched=["up:f of a.b"])
    found = read(tmp_path, one, one)
    assert found.differences == ()
    assert "  half-patched: up:f of a.b came here pickled by a process that is patched\n" in found.table()
    assert found.to_dict()["groups"][0]["half_patched"] == ["up:f of a.b"]
    said = headline({}, found)
    assert (said.tone, said.text.partition(" came here")[0]) == ("bad", "Half-patched: up:f of a.b")


def test_what_an_incomplete_patch_counted_is_told_and_not_that_it_counted_nothing(tmp_path: Path) -> None:
    effect = {"of": "call", "figures": [], "values": {}}
    one = made.status(unknown_verl(tmp_path / "site"))
    made.patch_of(one, ID).update(state="incomplete", reason="a list has it", effect=effect)
    assert read(tmp_path, one).effects == {}
    made.patch_of(one, ID).update(state="applied", reason="")
    assert read(tmp_path, one).never() == [ID]


def test_the_worst_news_comes_first(tmp_path: Path) -> None:
    """What stays wrong is worse than that ranks agree, and less so than that they do not."""
    harms = [SimpleNamespace(defect=f"d{n}", harm="silent-wrong" if n else "crash") for n in range(3)]
    audits: Any = [SimpleNamespace(of=lambda _: harms), SimpleNamespace(of=lambda _: harms[:1])]
    found = headline({"a": "apply"}, None, audits)
    remain = "3 known defects remain, 2 of them silent."
    assert (found.tone, found.text) == (
        "bad",
        f"{remain} 1 patch would be applied here, and none is refused.",
    )
    one, other = (made.status(tmp_path, python=f"3.12.{number}") for number in range(2))
    assert headline({}, read(tmp_path, one, one), audits).text.startswith(f"{remain} All 2 processes agree.")
    text = headline({}, read(tmp_path, one, other), audits).text
    assert text.index("do not agree") < text.index(remain)


def test_without_a_job_the_page_is_on_what_is_installed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, path = made.page(tmp_path), tmp_path / "r.html"
    said = capsys.readouterr()
    assert (said.out, "this environment" in text) == ("", True)
    assert f"wrote {path} ({path.stat().st_size / 1e3:.0f} kB): " in said.err
    assert not re.search('id="(agreement|effects)"', text)
    # Another file is no page.
    other, whole = tmp_path / "notes.html", path.read_bytes()
    other.write_text("mine")
    assert cli.main(["report", "-o", str(other)]) == 2
    assert "notes.html exists and is no report" in capsys.readouterr().err
    assert other.read_text() == "mine"
    assert cli.main(["report", "-o", str(path)]) == 0
    assert path.read_bytes()[:200] == whole[:200]
    # A page that is there stays as it is where none can be made.
    assert cli.main(["report", "-o", str(path), str(tmp_path)]) == 2
    assert re.sub(r" \d\d:\d\d UTC", "", path.read_text()) == re.sub(r" \d\d:\d\d UTC", "", text)


def test_what_waits_is_only_listed(tmp_path: Path) -> None:
    site = unknown_verl(tmp_path / "site")
    folder = str(made.job(tmp_path / "job", made.status(site)))
    assert cli.main(["report", folder, "--audit", str(site)]) == 2  # without a page there is no place for it
    # The installation itself knows that it is not there.
    for word, more in (("waiting", ()), ("not-installed", ("--audit", str(site)))):
        text = made.page(tmp_path, folder, *more)
        (listed,) = re.findall(rf"<strong>{word}</strong> .*?<p class=.why.>(.*?)</p>", text, re.DOTALL)
        assert "slime.capped-partitions" in listed.split(", ")
        assert ">slime.capped-partitions<" not in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["none"], "is not a folder: name the OVERLAY_LEDGER_DIR"),
        (["none", "-o", "r.html"], "is not a folder: name the OVERLAY_LEDGER_DIR"),
        ([".", "-o", "r.html"], "no readable ledger in ."),
        (["-o", "no/r.html"], "the report cannot be written"),
        (["-o", "r.html"], "pip install jinja2"),
        ([], "name a file for the page"),
    ],
)
def test_what_cannot_be_made_is_exit_code_2(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if "jinja2" in said:
        monkeypatch.setitem(sys.modules, "jinja2", None)
    assert cli.main(["report", *words]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


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
    # Of processes that each speak for a group of ranks, the worst holds.
    mended = made.status(site, met=[met("a.wrong", "mended", "silent-wrong")])
    for order in ([mended, made.status(site, met=told)], [made.status(site, met=told), mended]):
        assert read(tmp_path, *order).met == found.met
    said = headline({}, found).text
    assert said.startswith("2 known defects are not patched in this job, 1 of them silent.")
    table = found.table()
    assert "  a.wrong (silent-wrong): x is on -> set y\n" in table
    assert "  patched here: a.fixed\n" in table
    html, _ = page.render({}, found, [])
    assert html.index("a.wrong") < html.index("a.slow") < html.index("a.fixed")
