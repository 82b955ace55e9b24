"""Fills the template of the page, in the order in which a reader asks."""

from __future__ import annotations

import sys
import time

from overlay._version import __version__
from overlay.desk.report.headline import OUTCOMES, headline, outcome, view_of_group
from overlay.desk.report.job import noted, processes
from overlay.effect import told
from overlay.errors import ReportError
from overlay.model.record import TYPE_CHECKING
from overlay.source.judge import DEFECT_STATES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from overlay.desk.audit.audit import Audit
    from overlay.desk.report.headline import Headline, View
    from overlay.desk.report.job import Job
    from overlay.patch import Patch

#: What the outcomes mean whose patches nobody has to look at: the page only lists their ids.
LISTED = {
    "waiting": "no process has imported a module that they are for",
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
    """Return the page as HTML, and what it says first.

    Args:
        patches: All that are known, by id.
        job: What the processes of a job left, if the page is on one.
        audits: Installations, each with what is known to be wrong there.

    """
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
        link=link, noted=noted, told=told, processes=processes, tone=tone, marks=MARKS, tones=OUTCOMES
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


def tone(word: str) -> str:
    """Return what a verdict or a state means at a glance: `good`, `bad`, `care` or `plain`."""
    return OUTCOMES[outcome([word])]
