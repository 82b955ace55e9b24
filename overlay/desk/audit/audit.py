"""An audit: what is known to be wrong in one installation, patch by patch and defect by defect.

`overlay audit` prints it in 80 columns: each defect by what is to be done about it, or all about one. One
that is not patched has a line with the way out, and one that is patched is named. Those that a release has
fixed, or that settings exclude, are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from operator import attrgetter
from typing import Any

from overlay.defect import HARMS, READ, Defect
from overlay.model.record import TYPE_CHECKING, Record
from overlay.model.text import wrap
from overlay.runtime.engine import Engine
from overlay.source import known_defects
from overlay.source.conditions import ANSWERS, Answer
from overlay.source.known_defects import Finding, advice, judge, load_defects
from overlay.source.source import Tree
from overlay.verdict import Plan

if TYPE_CHECKING:
    from overlay.desk.audit.job_settings import JobSettings

#: Stands for `OVERLAY_PATCHES=all,` in a way out.
_SELECT = "select "
_HARM = attrgetter("harm")


class Audit(Record):
    """What is known to be wrong in one installation."""

    #: What is decided on the patches.
    plan: Plan
    #: By id.
    defects: dict[str, Defect]
    #: Those of projects that are there, the worst first.
    findings: tuple[Finding, ...]
    #: What the settings of a job say of each, by id; empty if none were given.
    answers: dict[str, Answer]
    settings: JobSettings | None = None
    #: The projects that patches are for and that are there, with their versions.
    installed: tuple[str, ...] = ()

    def of(self, *states: str) -> list[Finding]:
        """Return the findings in some states."""
        return [one for one in self.findings if one.state in states]

    def concerning(self) -> list[Finding]:
        """Return the defects that are not patched; with the settings of a job, those of them that it hits."""
        left = self.of("open", "unknown-source")
        if self.settings is None:
            return left
        return [one for one in left if self.answers[one.defect].word == "met"]

    def answered(self, word: str, *states: str) -> list[Finding]:
        """Return the findings in some states that the settings answer with `word`."""
        return [one for one in self.of(*states) if self.answers[one.defect].word == word]

    def count(self) -> str:
        """Return how many findings there are in each state."""
        counts = {
            "patched": self.of("mended"),
            "not patched": self.of("open"),
            "not known for this source": self.of("unknown-source"),
            "not in this release": self.of("not-needed"),
        }
        return ", ".join(
            f"{len(them)} {words}" for words, them in counts.items() if them or words.endswith("patched")
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: the plan, and a record for each defect of a project that is there."""
        data = {**self.plan.to_dict(), "defects": [self._entry(one) for one in self.findings]}
        if self.settings is not None:
            data["settings"] = {
                "file": self.settings.file,
                "dialect": self.settings.dialect.name,
                "unknown": self.settings.unknown(),
                "elsewhere": list(self.settings.elsewhere),
                "missing": list(self.settings.missing),
            }
        return data

    def _entry(self, finding: Finding) -> dict[str, Any]:
        defect = self.defects[finding.defect].to_dict()
        said = {name: defect[name] for name in ("summary", "met", "upstream", "fixed", "shown", "tried")}
        if finding.defect in self.answers:
            said["settings"] = self.answers[finding.defect].to_dict()
        return {**finding.to_dict(), **said}


def make_audit(
    engine: Engine,
    plan: Plan,
    tree: Tree,
    settings: JobSettings | None = None,
    harms: Collection[str] = (),
) -> Audit:
    """Judge every known defect in a tree.

    Args:
        engine: Which patches there are.
        plan: What is decided on them there. What its selection lacks counts as not selected.
        tree: The source.
        settings: Those of a job.
        harms: The harms that are asked for; empty for all.

    """
    patches, defects, table = engine.known(), load_defects(engine.known()), engine.tested()
    verdicts = {one.patch: one for one in plan.verdicts}
    left_out = verdicts.keys() - {*plan.selection}
    each = plan
    if any(verdicts[name].verdict == "not-selected" for name in left_out):  # then without targets
        each = engine.plan_each(tree)
    verdicts |= {
        one.patch: one.replace(verdict="not-selected") for one in each.verdicts if one.patch in left_out
    }
    found = [
        judge(one, patches.get(one.patch), verdicts.get(one.patch), tree, table) for one in defects.values()
    ]
    wanted = {target.project.name for patch in patches.values() for target in patch.targets}
    here = [one for one in engine.installed(tree) if one.version and one.project in wanted]
    kept = [one for one in found if one.state != "not-installed" and one.harm in (harms or HARMS)]
    kept.sort(key=lambda one: ([*HARMS].index(one.harm), one.defect))
    answers = {}
    if settings is not None:
        answers = {one.defect: settings.answer(defects[one.defect], one.version) for one in kept}
    return Audit(
        plan=plan,
        defects=defects,
        findings=tuple(kept),
        answers=answers,
        settings=settings,
        installed=tuple(sorted(f"{one.project} {one.version}" for one in here)),
    )


def screen(audit: Audit) -> str:
    """Return all findings, those that are not patched first."""
    if not audit.installed:
        return "nothing was checked: no project that a patch is for is here"
    where = f" in {audit.plan.site}" if audit.plan.site else ""
    lines = [wrap(text, "  ", first="") for text in (", ".join(audit.installed) + where, audit.count())]
    if audit.settings is None:
        lines += _lines("NOT PATCHED", audit.of("open"), audit)
        lines += _ids("NOT KNOWN FOR THIS SOURCE", audit.of("unknown-source"), _HARM)
        lines += _ids("PATCHED", audit.of("mended"), _HARM)
    else:
        lines += _by_settings(audit, audit.settings)
    same = audit.plan.site and " (same folders)"
    lines += ["", f"details of one: overlay audit --explain ID{same}; all as data: --json"]
    if any(f"-> {_SELECT}" in line for line in lines):
        lines.append("to select A and B beside the default patches: OVERLAY_PATCHES=all,A,B")
    return "\n".join(lines)


def _by_settings(audit: Audit, settings: JobSettings) -> list[str]:
    def why(one: Finding) -> str:
        return audit.answers[one.defect].why

    lines: list[str] = []
    for word in ("met", "untold"):
        left = audit.answered(word, "open", "unknown-source")
        others = [one for one in left if one.project not in settings.dialect.projects]
        ours = [one for one in left if one not in others]
        lines += _lines(f"NOT PATCHED, {ANSWERS[word].upper()}", ours, audit)
        lines += _ids("NOT PATCHED, OF ANOTHER PROJECT", others, why)
    # A defect that these settings do not hit is still there: name the settings that spare the job.
    spared = audit.answered("not-met", "open", "unknown-source")
    lines += _ids(f"NOT PATCHED, {ANSWERS['not-met'].upper()}", spared, why)
    for word in ("met", "untold"):
        lines += _ids(f"PATCHED, {ANSWERS[word].upper()}", audit.answered(word, "mended"), _HARM)
    lines += _title(f"PATCHED, {ANSWERS['not-met'].upper()}", audit.answered("not-met", "mended"))
    return [*lines, *_unknown(settings)]


def _ids(title: str, findings: list[Finding], by: Callable[[Finding], str]) -> list[str]:
    """Return the ids of findings, after what they have in common."""
    lines = _title(title, findings)
    for common in dict.fromkeys(map(by, findings)):
        them = ", ".join(one.defect for one in findings if by(one) == common)
        lines.append(wrap(f"{common}: {them}", "    ", first="  "))
    return lines


def _lines(title: str, findings: list[Finding], audit: Audit) -> list[str]:
    """Return a line for each finding: what settings say of it, and the way out."""
    lines = _title(title, findings)
    for harm in dict.fromkeys(one.harm for one in findings):
        lines.append(f"{harm}: {HARMS[harm]}")
        for one in (one for one in findings if one.harm == harm):
            why = f": {audit.answers[one.defect].why}" if one.defect in audit.answers else ""
            lines.append(wrap(f"{one.defect}{why}{_way_out(one)}", "      ", first="  "))
    return lines


def _way_out(finding: Finding) -> str:
    """Return the first thing that can be done, or else why nothing of ours can be."""
    if finding.state == "unknown-source":
        return ": not known for this source"
    if finding.patch and finding.way_out == f"OVERLAY_PATCHES=all,{finding.patch}":
        return f" -> {_SELECT}{finding.patch}"
    first = finding.way_out.partition("; or ")[0]
    return f" -> {first}" if first else f": {finding.reason}" if finding.reason else ""


def defect_text(defect: Defect, finding: Finding | None = None) -> str:
    """Return all about one defect."""
    read = "read in the source; no run has shown it"
    said = {
        "When": defect.met,
        "Upstream": ", ".join(defect.upstream) or "not reported",
        "Fixed": f"{defect.project.name} {defect.fixed}" if defect.fixed else "in no release",
        "Evidence": read if defect.shown == READ else f"measured by {defect.shown}",
        "Patched by": defect.patch or "no patch",
        "What to do": advice(defect) or ("" if defect.patch or defect.fixed else known_defects.NO_WORKAROUND),
        "Tested by": defect.tried,
    }
    lines = [wrap(f"{defect.id} ({defect.harm}: {HARMS[defect.harm]})"), "", wrap(defect.summary), ""]
    lines += [wrap(f"{what}: {text}") for what, text in said.items() if text]
    if finding is not None:
        here = [f"Here: {known_defects.DEFECT_STATES[finding.state]}", finding.reason, finding.way_out]
        lines += ["", wrap(". ".join(filter(None, here)))]
    return "\n".join(lines)


def _unknown(settings: JobSettings) -> list[str]:
    """Return how the settings were read, the keys that are unknown, and what may make them known."""
    unknown, missing = settings.unknown(), settings.missing
    said = [f"settings: {settings.file}, read as {settings.dialect.name}"]
    if settings.elsewhere:
        more = ", ".join(settings.elsewhere)
        said.append(f"It takes more from {more}, which was not read: no default is assumed")
    what = "which declares options and defaults, was not read"
    said += [f"{path}, {what}: {why}" for path, why in missing.items() if why]
    lines = ["", *(wrap(one, "  ", first="") for one in said), *_title("UNKNOWN SETTINGS", unknown)]
    if unknown:
        them = [f"{key} (did you mean {near}?)" if near else key for key, near in unknown.items()]
        lines.append(wrap(", ".join(them), "  "))
    if unknown and missing:
        what = f"They may be options all the same: {', '.join(missing)} cannot be read here"
        lines.append(wrap(what, "  "))
    return lines


def _title(title: str, what: Collection[object]) -> list[str]:
    """Return a title with the number of what follows it, or nothing if there is nothing."""
    return ["", f"{title} ({len(what)})"] if what else []
