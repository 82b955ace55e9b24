"""Fills the template of the page with what was read, in the order in which a reader asks for it."""

from __future__ import annotations

import re
import sys
import time

from overlay._version import __version__
from overlay.auditing.judge import STATES
from overlay.base.record import TYPE_CHECKING, Record
from overlay.deciding.plan import plan_digest
from overlay.defect import HARMS
from overlay.effect import told
from overlay.report import evidence
from overlay.report.charts import chart
from overlay.report.headline import OPT_IN, OUTCOMES, headline, outcome, unmet
from overlay.report.inputs import CHANGES
from overlay.report.ledgers import Group, compare
from overlay.report.sources import site_source
from overlay.verdict import LOUD, VERDICTS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import Any

    from markupsafe import Markup

    from overlay.auditing.audit import Audit
    from overlay.effect import Effect
    from overlay.ledger import PatchStatus
    from overlay.patch import Patch
    from overlay.reading.source import Tree
    from overlay.report.charts import Chart
    from overlay.report.headline import Headline
    from overlay.report.inputs import Ledger, Suite
    from overlay.report.sources import SiteSource
    from overlay.verdict import Plan, TargetVerdict, Verdict

#: What nobody has to look at: the project is not there, or the patch was left out.
_ASIDE = ("not-installed", "not-selected", "")


class View(Record):
    """What the report tells of: an installation that was audited, or processes that say the same."""

    name: str
    tree: Tree
    digest: str
    #: By id of the patch.
    verdicts: dict[str, Verdict]
    states: dict[str, PatchStatus]
    #: Patches that would be applied, and that only their ids select.
    on_request: frozenset[str] = frozenset()

    def word(self, patch: str) -> str:
        """Return what became of a patch here: its state in a process, else its verdict."""
        if patch in self.on_request:
            return OPT_IN
        state, verdict = self.states.get(patch), self.verdicts.get(patch)
        if self.states and state is None:
            return "not-selected"
        if state is not None and state.state != "skipped":
            return state.state
        return verdict.verdict if verdict is not None else ""

    def concerns(self, patch: str) -> bool:
        """Return whether the patch is for something that is there."""
        return self.word(patch) not in _ASIDE

    def why(self, patch: str) -> str:
        """Return the reason of that word, or the versions that it goes with."""
        state, verdict = self.states.get(patch), self.verdicts.get(patch)
        said = (state.reason if state is not None else "") or (verdict.reason if verdict is not None else "")
        if said:
            return said
        if patch in self.on_request:
            return f"OVERLAY_PATCHES=all,{patch} applies it"
        if verdict is not None:
            return verdict.where()
        return "not reached" if self.word(patch) == "armed" else ""

    def versions(self) -> list[str]:
        """Return the projects and their versions, as far as a verdict names them."""
        return sorted({f"{target.project} {target.version}" for target in self.found()})

    def found(self) -> list[TargetVerdict]:
        """Return the verdicts on projects whose version is known."""
        targets = (target for verdict in self.verdicts.values() for target in verdict.targets)
        return [target for target in targets if target.version]


def audit_view(name: str, plan: Plan, tree: Tree, selected: Collection[str]) -> View:
    """Return the view of an installation. `selected`: the patches that need not be asked for by their ids."""
    verdicts = {verdict.patch: verdict for verdict in plan.verdicts}
    on_request = {one for one, found in verdicts.items() if found.verdict == "apply" and one not in selected}
    return View(
        name=name,
        tree=tree,
        digest=plan.digest,
        verdicts=verdicts,
        states={},
        on_request=frozenset(on_request),
    )


def ledger_view(group: Group, tree: Tree) -> View:
    """Return the view of processes that say the same."""
    states = {patch.patch: patch for patch in group.first.status.patches}
    verdicts = {name: patch.verdict for name, patch in states.items() if patch.verdict is not None}
    return View(
        name=group.name,
        tree=tree,
        digest=plan_digest(verdicts.values()),
        verdicts=verdicts,
        states=states,
    )


def render(  # noqa: PLR0913 -- all that a report is made from
    *,
    title: str,
    patches: Mapping[str, Patch],
    audits: Sequence[View],
    ledgers: Sequence[Ledger],
    effects: Mapping[str, tuple[Effect, int]],
    tree: Tree,
    suites: Sequence[Suite],
    charts: Sequence[Chart],
    support: Mapping[str, Mapping[str, Mapping[str, str]]],
    defects: Sequence[tuple[str, Audit]] = (),
    gaps: Sequence[str] = (),
) -> tuple[str, Headline]:
    """Return the page as HTML, and what it says first.

    Args:
        title: Its heading.
        patches: All that are known, by id.
        audits: What was decided for installations.
        ledgers: What processes said.
        effects: By patch, what the processes of a job counted together, and in how many it was reached.
        tree: Where the sources that ledgers speak of may lie.
        suites: Results of upstreams' own tests.
        charts: Pictures, beside those that patches bring along.
        support: The matrix that comes with overlay.
        defects: What is known to be wrong in each of the installations.
        gaps: Sentences on processes of which too little is known.

    """
    import jinja2

    groups, differences = compare(ledgers)
    views = [*audits, *(ledger_view(group, tree) for group in groups)]
    known = [*patches, *(name for view in views for name in view.states if name not in patches)]
    outcomes = {name: outcome([view.word(name) for view in views if view.word(name)]) for name in known}
    first = headline(outcomes, len(ledgers), groups, differences, gaps)
    concerned = [name for name in known if any(view.concerns(name) for view in views)]
    waiting = [name for name in concerned if outcomes[name] in ("not reached", "not installed")]
    absent = [name for name in known if outcomes[name] == "not installed"]
    met = {target.project for view in views for target in view.found()}
    nothing_of = unmet(patches, met, (name for name in waiting if name not in absent))
    apart = {*absent, *(name for names in nothing_of.values() for name in names)}
    shown = [name for name in concerned if name not in apart]
    pictures = [
        chart(figure)
        for name in shown
        if OUTCOMES[outcomes[name]] == "good"
        for figure in evidence.figures(name)
    ]
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("overlay.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(link=link, tone=tone, mark=mark, breakable=breakable)
    text = environment.get_template("page.html").render(
        title=title,
        first=first,
        tones=OUTCOMES,
        absent=absent,
        nothing_of=nothing_of,
        when=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        version=__version__,
        python=".".join(map(str, sys.version_info[:3])),
        views=views,
        shown=shown,
        aside=[name for name in known if outcomes[name] == "not selected"],
        patches={name: _card(patches.get(name), name, views) for name in shown},
        contracts=evidence.contracts(shown, support, (one for view in views for one in view.versions())),
        ledgers=ledgers,
        effects=[(name, told(effect), count) for name, (effect, count) in effects.items()],
        groups=groups,
        differences=differences,
        suites=suites,
        changes=CHANGES,
        charts=[*charts, *pictures],
        matrix=_matrix(support, views),
        meanings=VERDICTS,
        defects=[(name, audit) for name, audit in defects if audit.findings],
        harms=HARMS,
        states=STATES,
    )
    return text, first


def link(reference: str) -> str:
    """Return the address of `owner/repo#number` or `owner/repo@commit`."""
    for sign, kind in (("#", "issues"), ("@", "commit")):
        repository, found, number = reference.partition(sign)
        if found and repository.count("/") == 1:
            return f"https://github.com/{repository}/{kind}/{number}"
    return ""


def breakable(name: str) -> Markup:
    """Return a name or a setting in which lines may break, after dots, slashes, commas and the like."""
    from markupsafe import Markup, escape

    return Markup("<wbr>").join(map(escape, re.findall(r"[^./=,:]*[./=,:]+|[^./=,:]+", name)))


def tone(word: str) -> str:
    """Return what a word means at a glance: `good`, `bad`, `care` or `plain`."""
    if word in LOUD or word in ("failed", "lost", "differ", "open"):
        return "bad"
    if word in ("incomplete", "flaky", "reverted", "unknown"):
        return "care"
    return "good" if word in ("apply", "applied", "won", "passed", "mended", "fixed") else "plain"


def mark(word: str) -> str:
    """Return the sign that stands before a word, so that no meaning hangs on a colour."""
    return {"good": "\u2713", "bad": "\u2717", "care": "!", "plain": "\u2013"}[tone(word)]


class Card(Record):
    """All about one patch."""

    id: str
    patch: Patch | None
    #: What the views say of it.
    words: tuple[str, ...]
    #: For each view: what is replaced there.
    sources: tuple[tuple[str, tuple[SiteSource, ...]], ...]
    #: Whether somebody has to look at it.
    open: bool


def _card(patch: Patch | None, name: str, views: Sequence[View]) -> Card:
    found: dict[tuple[SiteSource, ...], list[str]] = {}
    for view in views:
        verdict = view.verdicts.get(name)
        if patch is not None and verdict is not None and verdict.verdict == "apply":
            found.setdefault(_sources(patch, verdict, view.tree), []).append(view.name)
    sources = tuple((", ".join(names), sites) for sites, names in found.items() if sites)
    attention = any(tone(view.word(name)) in ("bad", "care") for view in views)
    words = dict.fromkeys(view.word(name) for view in views if view.concerns(name))
    return Card(id=name, patch=patch, words=tuple(words), sources=sources, open=attention)


def _sources(patch: Patch, verdict: Verdict, tree: Tree) -> tuple[SiteSource, ...]:
    found = []
    for target in patch.targets:
        decided = next((item for item in verdict.targets if item.project == target.project.name), None)
        if decided is None or decided.verdict != "apply":
            continue
        digests = {finding.site: finding.digest for finding in decided.findings}
        for variant in target.variants:
            if variant.name == decided.variant:
                found += [
                    site_source(replacement, tree, digests.get(replacement.site, ""))
                    for replacement in variant.replacements
                ]
    return tuple(found)


def _matrix(support: Mapping[str, Mapping[str, Mapping[str, str]]], views: Sequence[View]) -> list[Any]:
    """Return each project with its releases, whether each is installed here, and the cells of its patches."""
    here = {version for view in views for version in view.versions()}
    found = []
    groups: dict[str, dict[str, Mapping[str, Mapping[str, str]]]] = {}
    for name, row in support.items():
        # A release, `verl==0.8.0`; or a head or an image, `verl main` and `verl image 0.8.0`.
        project, _, version = name.rpartition("==" if "==" in name else " ")
        groups.setdefault(project, {})[version] = row
    for project, rows in groups.items():
        releases = [(version, f"{project} {version.removeprefix('v')}" in here) for version in rows]
        patches = sorted({name for row in rows.values() for name in row})
        found.append(
            (project, releases, [(name, [row.get(name) for row in rows.values()]) for name in patches])
        )
    return found
