"""`overlay report`, and its page: the template filled in the order in which a reader asks."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from overlay._version import __version__
from overlay.desk.audit.audit import Audit, make_audit
from overlay.desk.commands import OPT_IN
from overlay.desk.output import EXIT_OK, folder, say, show
from overlay.desk.report.job import Group, Job, noted, read
from overlay.effect import told
from overlay.errors import ReportError
from overlay.ledger import CAME
from overlay.model.record import Record
from overlay.model.text import counted, listed
from overlay.model.whole import write_whole
from overlay.patch import Patch
from overlay.runtime.engine import Engine
from overlay.source.known_defects import DEFECT_STATES
from overlay.source.source import Tree
from overlay.verdict import Plan, TargetVerdict

#: What can become of a patch, the worst first, with the tone of each: a state, a verdict, or `not known`, if
#: only another version of overlay knows the patch.
OUTCOMES: dict[str, str] = {
    "failed": "bad",
    "conflict": "bad",
    "unknown-source": "bad",
    "incomplete": "care",
    "reverted": "care",
    "applied": "good",
    "apply": "good",
    "waiting": "plain",
    OPT_IN: "plain",
    "not-needed": "plain",
    "not-installed": "plain",
    "not-selected": "plain",
    "not known": "plain",
}


class View(Record):
    """An installation that was audited, or processes that say the same."""

    name: str
    #: By patch, its verdict or its state, and why.
    words: dict[str, tuple[str, str]]
    #: The word for a patch that `words` lacks.
    otherwise: str
    #: The projects there, each with its version.
    versions: tuple[str, ...]
    #: The overlay, the Python and the settings of processes.
    settings: tuple[str, ...] = ()

    def word(self, patch: str) -> str:
        """Return what became of a patch here, empty if nothing is known of it."""
        return self.words.get(patch, (self.otherwise, ""))[0]


def view_of_plan(name: str, plan: Plan) -> View:
    """Return the view of an installation: a patch that its selection lacks must be selected by its id."""
    words = {}
    for one in plan.verdicts:
        asked = one.verdict != "apply" or one.patch in plan.selection
        words[one.patch] = (one.verdict if asked else OPT_IN, one.reason or one.where())
    targets = (target for one in plan.verdicts for target in one.targets)
    return View(name=name, words=words, otherwise="", versions=_versions(targets))


def view_of_group(group: Group) -> View:
    """Return the view of processes that say the same."""
    words: dict[str, tuple[str, str]] = {}
    targets: list[TargetVerdict] = []
    for one in group.status.patches:
        word, why = one.state, one.reason
        if one.verdict is not None:
            word = one.verdict.verdict if word == "skipped" else word
            why = why or one.verdict.reason or one.verdict.where()
            targets += one.verdict.targets
        words[one.patch] = (word, why)
    status = group.status
    settings = [
        f"overlay {status.version}{'' if status.enabled else ', not enabled'}",
        f"Python {status.python}",
        "strict" if status.strict else "not strict",
    ]
    settings += [f"pinned to {status.pinned}"] if status.pinned else []
    return View(
        name=group.name,
        words=words,
        otherwise="not-selected",
        versions=_versions(targets),
        settings=tuple(settings),
    )


def _versions(targets: Iterable[TargetVerdict]) -> tuple[str, ...]:
    return tuple(sorted({f"{target.project} {target.version}" for target in targets if target.version}))


def outcome(words: Iterable[str]) -> str:
    """Return what became of a patch, from the words of all views on it."""
    found = {word if word in OUTCOMES else "not known" for word in words}
    if found & {"waiting", "not-selected"}:
        # What processes say counts more than what an installation could take.
        found -= {"apply", OPT_IN}
    for said_by_some in ("not-selected", "waiting"):
        if len(found) > 1:
            found.discard(said_by_some)
    return next(name for name in OUTCOMES if name in found or name == "not known")


class Headline(Record):
    """The outcome in a few sentences, and the numbers behind it."""

    tone: str
    text: str
    #: How many patches have each outcome, without the outcomes that none has.
    counts: tuple[tuple[str, int], ...]

    def tally(self) -> str:
        """Return the numbers as text."""
        return " \u00b7 ".join(f"{count} {outcome}" for outcome, count in self.counts)


def headline(outcomes: Mapping[str, str], job: Job | None, audits: Iterable[Audit] = ()) -> Headline:
    """Return the headline on the outcomes of all patches, on a job, and on installations."""
    by_tone: dict[str, list[str]] = {tone: [] for tone in ("bad", "care", "good", "plain")}
    for name, one in outcomes.items():
        by_tone[OUTCOMES[one]].append(name)
    fine = "good" if by_tone["good"] else "plain"
    # Each sentence with its tone. Sentences of one tone stay in this order.
    said = [] if job is None else [("bad" if job.differences else fine, _agreement(job))]
    said += [] if job is None else [("care", gap) for gap in job.gaps()]
    for tone, what in (("bad", "asked for, and not applied"), ("care", "not completely applied")):
        if names := by_tone[tone]:
            said.append((tone, f"{_named(names)} {'is' if len(names) == 1 else 'are'} {what}."))
    if job is not None and (half := job.half_patched()):
        said.append(("bad", f"Half-patched: {_named(half)} {CAME}."))
    if job is not None and (met := {one.defect: one.harm for one in job.open()}):
        said.append(("bad", _defects(met, "not patched in this job")))
    if left := {one.defect: one.harm for audit in audits for one in audit.of("open")}:
        said.append(("bad", _defects(left, "")))
    number = {name: sum(one == name for one in outcomes.values()) for name in OUTCOMES}
    if not by_tone["bad"] and not by_tone["care"]:
        said.append((fine, _no_complaint(number, job)))
    said.sort(key=lambda one: [*by_tone].index(one[0]))
    counts = tuple((name, count) for name, count in number.items() if count)
    return Headline(tone=said[0][0], text=" ".join(sentence for _, sentence in said), counts=counts)


def _defects(harms: Mapping[str, str], what: str) -> str:
    """Return how many known defects remain, and how many of them nobody notices."""
    count, silent = len(harms), sum(harm == "silent-wrong" for harm in harms.values())
    remain = f"{'is' if count == 1 else 'are'} {what}" if what else f"remain{'s' * (count == 1)}"
    found = f"{counted(count, 'known defect')} {remain}"
    return f"{found}, {silent} of them silent." if silent else f"{found}."


def _agreement(job: Job) -> str:
    count = len(job.names)
    if job.differences:
        # Where versions differ, the sources of many sites do: the table has them.
        facts = [one.fact for one in job.differences if not one.is_source]
        facts = facts or [one.fact for one in job.differences]
        who = _named([group.name for group in job.groups])
        return f"The {count} processes do not agree: {who} differ in {_named(facts, 3)}."
    if count == 1:
        return "One process."
    return f"The {count} processes here agree." if job.gaps() else f"All {count} processes agree."


def _no_complaint(number: Mapping[str, int], job: Job | None) -> str:
    there, wanted = number["applied"], number["apply"]
    if there:
        where = "applied on some" if job is not None and job.differences else "applied"
        return f"{counted(there, 'patch')} {'is' if there == 1 else 'are'} {where}, and none was refused."
    if wanted:
        return f"{counted(wanted, 'patch')} would be applied here, and none is refused."
    if number["waiting"]:
        return "Every patch still waits: none of the modules that they are for was imported."
    return "No patch is applied." if job is not None else "No patch would be applied here."


def _named(names: Sequence[str], most: int = 4) -> str:
    """Return names in a sentence."""
    if 1 < len(names) <= most:
        return f"{', '.join(names[:-1])} and {names[-1]}"
    return listed(names, most)


#: The meaning of each outcome that asks nothing of a reader: the page only lists the ids of its patches.
LISTED = {
    "waiting": "none of the modules that each is for was imported",
    "opt-in": "they apply here if somebody names them, as in OVERLAY_PATCHES=all,ID",
    "not-needed": "what is installed does not have the defect, or another patch fixes it",
    "not-installed": "their project is not there",
    "not-selected": "the selection leaves them out",
    "not known": "another version of overlay knows them",
}
#: The sign before a word, so that no meaning hangs on a colour.
MARKS = {"good": "\u2713", "bad": "\u2717", "care": "!", "plain": "\u2013"}
#: The tones of the states of a defect.
DEFECTS = {"open": "bad", "unknown-source": "care", "mended": "good", "not-needed": "good"}


def render(
    patches: Mapping[str, Patch],
    job: Job | None,
    audits: Sequence[tuple[View, Audit]],
) -> tuple[str, Headline]:
    """Return the page as HTML on a job, installations or both, and what it says first."""
    try:
        import jinja2
    except ImportError as error:
        what = "a page needs what the extra report brings: pip install jinja2"
        raise ReportError(f"{what} ({error})") from error
    views = [view for view, _ in audits]
    views += [view_of_group(group) for group in job.groups] if job is not None else []
    known = dict.fromkeys([*patches, *(name for view in views for name in view.words)])
    outcomes = {name: outcome([view.word(name) for view in views if view.word(name)]) for name in known}
    first = headline(outcomes, job, [audit for _, audit in audits])
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("overlay.desk.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        link=link, noted=noted, told=told, counted=counted, marks=MARKS, tones=OUTCOMES
    )
    text = environment.get_template("page.html").render(
        first=first,
        when=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        version=__version__,
        python=".".join(map(str, sys.version_info[:3])),
        job=job,
        views=views,
        patches=patches,
        loud=[name for name in known if OUTCOMES[outcomes[name]] in ("bad", "care")],
        fine=[name for name in known if OUTCOMES[outcomes[name]] == "good"],
        listed=[
            (words, meaning, names)
            for words, meaning in LISTED.items()
            if (names := [name for name in known if outcomes[name] == words])
        ],
        audits=[(view.name, audit) for view, audit in audits if audit.findings],
        states=DEFECT_STATES,
        defects=DEFECTS,
    )
    return text, first


def link(reference: str) -> str:
    """Return the address of `owner/repo#number` or `owner/repo@commit`, empty for anything else."""
    for sign, kind in (("#", "issues"), ("@", "commit")):
        repository, found, number = reference.partition(sign)
        if found and repository.count("/") == 1:
            return f"https://github.com/{repository}/{kind}/{number}"
    return ""


#: What every page has near its beginning.
_TITLE = b"<title>overlay: "


def add(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command to a parser."""
    what = "show which patches a job's ranks had; -o writes that, or an audit, as an HTML page"
    page = add_command("report", write, what)
    what = "the folder of a job's ledgers (OVERLAY_LEDGER_DIR): without -o, what is in it is printed"
    page.add_argument("job", nargs="?", metavar="DIR", help=what)
    page.add_argument("-o", "--output", metavar="FILE", help="the page, such as report.html")
    what = "an installation, unpacked wheel or checkout; repeatable (default without a job: this one)"
    page.add_argument("--audit", action="append", default=[], type=folder, metavar="DIR", help=what)


def write(engine: Engine, arguments: argparse.Namespace) -> int:
    """Write the page, or print what a job left. Raises `ReportError` for what cannot be read or written."""
    path: str = arguments.output or ""
    job = read(arguments.job) if arguments.job else None
    if not path:
        if job is None or arguments.audit:
            raise ReportError("name a file for the page (-o FILE), or the folder of a job's ledgers alone")
        show(arguments, job.to_dict(), job.table)
        return EXIT_OK
    audits = []
    for site in arguments.audit or ([] if job else [None]):
        tree = Tree(site)
        plan = engine.plan_each(tree)
        view = view_of_plan(site or "this environment", plan)
        audits.append((view, make_audit(engine, plan, tree)))
    text, first = render(engine.known(), job, audits)
    data = text.encode("utf-8", errors="backslashreplace")
    if os.path.isfile(path) and os.path.getsize(path):
        with open(path, "rb") as file:
            is_page = _TITLE in file.read(4096)
        if not is_page:
            what = f"{path} exists and is no report of overlay's"
            raise ReportError(f"{what}, so nothing was written: name another file")
    try:
        write_whole(path, data)
    except OSError as error:
        raise ReportError(f"the report cannot be written: {error}") from error
    say(f"wrote {os.path.abspath(path)} ({len(data) / 1e3:.0f} kB): {first.tally()}")
    say(first.text)
    return EXIT_OK
