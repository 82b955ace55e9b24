"""What a report says first, and what it counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import report_inputs as made
from command_line import unknown_verl
from fake_upstream import triple

from overlay.catalogue.registry import load_patches
from overlay.ledger import STATES
from overlay.reading.source import InstalledTree
from overlay.report import inputs, page
from overlay.report.headline import OPT_IN, OUTCOMES, headline, outcome, unmet
from overlay.report.job import Job
from overlay.report.ledgers import compare
from overlay.verdict import VERDICTS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fake_upstream import Upstream

    from overlay.enabling.engine import Engine


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["applied"], "in place"),
        (["apply"], "to be applied"),
        (["armed"], "not reached"),
        (["applied", "armed"], "in place"),
        (["apply", "armed"], "not reached"),
        (["not-installed", "armed"], "not installed"),
        (["fixed-upstream", "armed"], "nothing to mend"),
        (["applied", "incomplete"], "incomplete"),
        (["applied", "unsupported"], "asked for, and not there"),
        (["not-installed", "apply"], "to be applied"),
        ([], "not known"),
        (["a word of another overlay"], "not known"),
    ],
)
def test_what_became_of_a_patch(words: list[str], found: str) -> None:
    assert outcome(words) == found


def test_every_state_and_verdict_comes_to_something() -> None:
    words = (*STATES, *VERDICTS, OPT_IN)
    assert {outcome([word]) for word in words} == OUTCOMES.keys() - {"not known"}


def test_what_only_its_id_selects_is_not_to_be_applied(
    upstream: Upstream, engines: Callable[..., Engine]
) -> None:
    named = upstream.patch({"fakeup.core:Engine.fixed": triple}, name="fakeup.reading").replace(opt_in=True)
    engine, tree = engines(upstream.patch(), named), InstalledTree()
    view = page.audit_view("here", engine.plan_each(tree), tree, engine.chosen("all").ids)
    assert {name: outcome([view.word(name)]) for name in engine.known()} == {
        "fakeup.scale": "to be applied",
        "fakeup.reading": "opt-in",
    }
    assert page.tone(view.word("fakeup.reading")) == "plain"
    assert view.why("fakeup.reading") == "OVERLAY_PATCHES=all,fakeup.reading applies it"
    # A job in which somebody has named it tells more.
    assert outcome([OPT_IN, "applied"]) == "in place"
    assert outcome([OPT_IN, "armed"]) == "not reached"


def job(folder: Path, *changes: dict[str, Any]) -> list[inputs.Ledger]:
    """Return ledgers of ranks with four patches in place, and others that were not reached."""
    statuses = [made.status(folder, **change) for change in changes]
    for status in statuses:
        for place, patch in enumerate(status["patches"]):
            patch.update(state="applied" if place < 4 else "armed", verdict=None, reason="")
        status["patches"] = status["patches"][:13]
    return made.ledgers(folder, *statuses)


def first(ledgers: list[inputs.Ledger]) -> tuple[str, str, str]:
    groups, differences = compare(ledgers)
    states = {patch.patch: patch.state for patch in ledgers[0].status.patches}
    found = headline(
        {name: outcome([word]) for name, word in states.items()}, len(ledgers), groups, differences
    )
    return found.tone, found.text, found.tally()


def test_agreement_comes_first(tmp_path: Path) -> None:
    assert first(job(tmp_path, {}, {}, {})) == (
        "good",
        "All 3 processes agree. 4 patches are in place, and none was refused.",
        "4 in place \u00b7 9 not reached",
    )
    tone, text, _ = first(job(tmp_path, {}, {"python": "3.12.1"}, {}))
    assert tone == "bad"
    assert text.startswith("The 3 processes do not agree: ranks 0,2 and rank 1 differ in Python. ")
    _, text, _ = first(job(tmp_path, {}))
    assert text.startswith("One process, with nobody to compare it with. 4 patches")


def test_nobody_speaks_for_a_rank_that_left_no_ledger(tmp_path: Path) -> None:
    ledgers = job(tmp_path, {}, {})
    groups, differences = compare(ledgers)
    missing = Job(
        ledgers=tuple(ledgers), effects={}, missing=(2,), cut_short=("rank 0",), unreadable=()
    ).gaps()
    found = headline({"a": "in place"}, 2, groups, differences, missing)
    assert found.tone == "care"
    assert found.text.startswith("The 2 processes here agree. There is no ledger of rank 2. 1 of 2 did not")


@pytest.mark.parametrize(
    ("outcomes", "tone", "text"),
    [
        ({}, "plain", "There is nothing here that a patch would mend."),
        ({"a": "to be applied"}, "good", "1 patch would be applied here, and none is refused."),
        ({"a": "to be applied", "b": "asked for, and not there"}, "bad", "b is asked for, and not there."),
        (
            dict.fromkeys("abcdef", "incomplete"),
            "care",
            "a, b, c, d and 2 more are not completely in place.",
        ),
        (
            {"a": "not reached"},
            "plain",
            "No patch has been reached: none of the modules that they are for was imported.",
        ),
    ],
)
def test_the_outcome_of_installations(outcomes: dict[str, str], tone: str, text: str) -> None:
    found = headline(outcomes, 0, (), ())
    assert (found.tone, found.text) == (tone, text)


def test_ranks_of_two_selections_differ_in_that_and_not_in_each_patch(tmp_path: Path) -> None:
    more = made.status(tmp_path)
    names = [one["patch"] for one in more["patches"]]
    fewer = {**more, "patches": more["patches"][:2], "selection": names[:2]}
    groups, differences = compare(made.ledgers(tmp_path, {**more, "selection": names[:4]}, fewer))
    assert [group.name for group in groups] == ["rank 0", "rank 1"]
    (one,) = differences
    assert (one.fact, one.said) == (
        "selection",
        (
            ("rank 0", f"2 that all have, and {names[2]}, {names[3]}"),
            ("rank 1", "2 that all have"),
        ),
    )
    found = headline({names[0]: "in place"}, 2, groups, differences)
    assert found.text == (
        "The 2 processes do not agree: rank 0 and rank 1 differ in selection. "
        "1 patch is in place on some, and none was refused."
    )


def test_what_no_process_has_selected_is_not_selected(tmp_path: Path) -> None:
    (group,), _ = compare(made.ledgers(tmp_path, made.status(tmp_path)))
    view = page.ledger_view(group, InstalledTree())
    opted = next(name for name, patch in load_patches().items() if patch.opt_in)
    assert outcome([view.word(opted)]) == "not selected"
    # Whatever an installation could take, this is what the job took.
    for word in ("apply", OPT_IN):
        assert outcome([word, view.word(opted)]) == "not selected"
    assert outcome(["armed", "not-selected"]) == "not reached"
    assert outcome(["applied", "not-selected"]) == "in place"


def test_a_project_of_which_nothing_was_reached_is_told_apart() -> None:
    known = load_patches()
    slime = [name for name in known if name.startswith("slime.")]
    verl = [name for name in known if name.startswith("verl.")]
    assert unmet(known, {"verl"}, [*slime, *verl, "acme/unknown"]) == {"slime": slime}


def test_a_job_without_slime_has_no_row_of_slime(tmp_path: Path) -> None:
    site = unknown_verl(tmp_path / "site")
    ledger = made.write(tmp_path / "rank0.json", made.status(site))
    text = made.page(tmp_path, "--ledger", ledger)
    assert "Nothing of slime was reached" in text
    assert 'href="#patch-slime.' not in text
    # The installation itself knows that it is not there.
    text = made.page(tmp_path, "--ledger", ledger, "--audit", str(site))
    assert "Nothing of slime was reached" not in text
    assert "not installed" in text
