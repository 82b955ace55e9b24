"""What `overlay audit` prints in 80 columns: one screen, an entry for each defect, or all about one of them.

On the screen each defect that is not mended has a line. What is mended is named as far as there is room. What
is fixed is counted, and so is what settings exclude.
"""

from __future__ import annotations

import textwrap

from overlay.defect import HARMS, READ
from overlay.model.record import TYPE_CHECKING
from overlay.model.text import WIDTH, wrap
from overlay.source.conditions import ANSWERS
from overlay.source.judge import NONE, STATES, advice

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from overlay.defect import Defect
    from overlay.desk.audit.audit import Audit
    from overlay.desk.audit.job_settings import Settings
    from overlay.source.judge import Finding

#: Lines of a screen, if what is not mended leaves room.
HEIGHT = 40
#: Said in the place of a selection that leaves all other patches as they are.
_SELECT = "select "


def screen(audit: Audit) -> str:
    """Return one screen."""
    if not audit.findings:
        return "no project that a known defect is of"
    head = [*_wrapped(audit.versions(), rest="  "), *_wrapped(audit.count(), rest="  ")]
    urgent, listed = _by_source(audit) if audit.settings is None else _by_settings(audit)
    tail = ["--all says more of each, --explain ID all about one"]
    if any(f"-> {_SELECT}" in line for line in urgent):
        tail = ["OVERLAY_PATCHES=all,A,B selects A and B; --all and --explain ID say more"]
    if audit.settings is not None:
        tail = [*_unknown(audit.settings), *tail]
    if audit.plan.site:
        tail.append(f"in {audit.plan.site}")
    room = HEIGHT - len(head) - len(urgent) - len(tail)
    return "\n".join([*head, *urgent, *_cut(listed, room), *tail])


def _by_source(audit: Audit) -> tuple[list[str], list[str]]:
    urgent = _lines("PRESENT AND NOT MENDED", audit.of("open"), audit)
    urgent += _paragraph("NOT KNOWN FOR THIS SOURCE", audit.of("unknown-source"))
    return urgent, _paragraph("PRESENT AND MENDED", audit.of("mended"))


def _by_settings(audit: Audit) -> tuple[list[str], list[str]]:
    urgent: list[str] = []
    for word in ("met", "untold"):
        urgent += _lines(f"NOT MENDED, {ANSWERS[word].upper()}", _not_mended(audit, word), audit)
    listed = _not_met(audit)
    for word in ("met", "untold"):
        listed += _paragraph(f"MENDED, {ANSWERS[word].upper()}", audit.answered(word, "mended"))
    if rest := len(audit.answered("not-met", "mended")):
        listed += ["", f"MENDED, {ANSWERS['not-met'].upper()} ({rest})"]
    return urgent, listed


def _lines(title: str, findings: list[Finding], audit: Audit) -> list[str]:
    """Return a line for each, with the way out; before that what settings say of it."""
    lines = _title(title, findings)
    for harm in HARMS:
        them = [one for one in findings if one.harm == harm]
        if them:
            lines.append(f"{harm}: {HARMS[harm]}")
        for one in them:
            answer = audit.answers.get(one.defect)
            why = f": {answer.why}" if answer is not None else ""
            line = f"{one.defect}{why}{_way_out(one)}"
            # Half an advice is none, and so is half of what decides.
            lines += _wrapped(line, "  ", "      ") if why or one.way_out else [_short(f"  {line}")]
    return lines


def _way_out(finding: Finding) -> str:
    """Return the first thing that can be done, or else why nothing of ours can be."""
    if finding.state == "unknown-source":
        return ": not known for this source"
    if finding.patch and finding.way_out == f"OVERLAY_PATCHES=all,{finding.patch}":
        return f" -> {_SELECT}{finding.patch}"
    first = finding.way_out.partition("; or ")[0]
    return f" -> {first}" if first else f": {finding.reason}" if finding.reason else ""


def _paragraph(title: str, findings: list[Finding]) -> list[str]:
    """Return the ids alone, after each harm, in one paragraph."""
    said = "; ".join(f"{harm}: {', '.join(names)}" for harm, names in _by_harm(findings))
    return [*_title(title, findings), *_wrapped(said, "  ", "  ")]


def _cut(lines: list[str], room: int) -> list[str]:
    """Return as many of the lines as there is room for, and whether that is all."""
    if len(lines) <= room:
        return lines
    # A title and a line under it are there at least: the reader is to know that there is something.
    kept = lines[: max(room - 1, 3)]
    while kept and not kept[-1].startswith(" "):
        kept.pop()
    return [*kept, "... and more: --all"]


def _short(line: str) -> str:
    """Return a line of at most 80 columns, with its indentation."""
    left = line[: len(line) - len(line.lstrip())]
    return left + textwrap.shorten(line, WIDTH - len(left), placeholder=" ...")


def entries(audit: Audit) -> str:
    """Return each finding with its words, of an audit that has some."""
    lines = [*_wrapped(audit.versions()), *_wrapped(f"known defects: {audit.count()}", rest="  ")]
    if audit.settings is None:
        lines += _entries("PRESENT AND NOT MENDED", audit.of("open"), audit)
        lines += _ids("NOT KNOWN FOR THIS SOURCE (--explain says why)", audit.of("unknown-source"))
        lines += _ids("PRESENT AND MENDED", audit.of("mended"))
    else:
        for word in ("met", "untold"):
            lines += _entries(f"NOT MENDED, {ANSWERS[word].upper()}", _not_mended(audit, word), audit)
        lines += _not_met(audit)
        for word, words in ANSWERS.items():
            lines += _ids(f"MENDED, {words.upper()}", audit.answered(word, "mended"))
    fixed = {one.defect: audit.defects[one.defect].fixed for one in audit.of("not-needed")}
    lines += _title("NOT IN THIS RELEASE", fixed)
    lines += _wrapped(
        ", ".join(f"{name} (fixed in {fix})" if fix else name for name, fix in fixed.items()), "  ", "  "
    )
    if audit.settings is not None:
        lines += _unknown(audit.settings)
    lines += ["", "overlay audit --explain ID says all about one, --json about all"]
    return "\n".join([*lines, f"in {audit.plan.site}"] if audit.plan.site else lines)


def _entries(title: str, findings: list[Finding], audit: Audit) -> list[str]:
    """Return an entry for each: its words, and the way out."""
    lines = _title(title, findings)
    for one in findings:
        answer = audit.answers.get(one.defect)
        known = " (not known for this source)" if one.state == "unknown-source" else ""
        lines.append(f"{one.harm:<13}  {one.defect}{known}")
        if answer is None:
            summary = audit.defects[one.defect].summary
            lines.append(f"  {textwrap.shorten(summary, WIDTH - 2, placeholder=' ...')}")
        else:
            lines += _wrapped(answer.why, "  ", "    ")
        if one.way_out:
            lines += _wrapped(f"-> {one.way_out}", "  ", "     ")
    return lines


def _ids(title: str, findings: list[Finding]) -> list[str]:
    """Return the ids alone, after each harm: nothing has to be done about them."""
    lines = _title(title, findings)
    for harm, names in _by_harm(findings):
        lines += _wrapped(", ".join(names), f"{harm:<14} ", " " * 15)
    return lines


def explanation(defect: Defect, finding: Finding | None = None) -> str:
    """Return all about one defect."""
    read = "read in the source; no run has shown it"
    said = {
        "Met under": defect.met,
        "Upstream": ", ".join(defect.upstream) or "not reported",
        "Fixed": f"{defect.project.name} {defect.fixed}" if defect.fixed else "in no release",
        "Shown": read if defect.shown == READ else f"measured by {defect.shown}",
        "Mended by": defect.patch or "no patch",
        "Way out": advice(defect) or ("" if defect.patch or defect.fixed else NONE),
        "Tried by": defect.tried,
    }
    lines = [f"{defect.id}: {defect.harm}, {HARMS[defect.harm]}", "", *_wrapped(defect.summary), ""]
    for what, text in said.items():
        lines += _wrapped(f"{what}: {text}") if text else []
    if finding is not None:
        here = ". ".join(filter(None, [f"Here: {STATES[finding.state]}", finding.reason, finding.way_out]))
        lines += ["", *_wrapped(here)]
    return "\n".join(lines)


def _not_mended(audit: Audit, word: str) -> list[Finding]:
    return audit.answered(word, "open", "unknown-source")


def _not_met(audit: Audit) -> list[str]:
    """Return what is not mended by the settings that decide: not safe, but not met by these."""
    findings = _not_mended(audit, "not-met")
    reasons: dict[str, list[str]] = {}
    for one in findings:
        reasons.setdefault(audit.answers[one.defect].why, []).append(one.defect)
    lines = _title(f"NOT MENDED, {ANSWERS['not-met'].upper()}", findings)
    for why, them in reasons.items():
        lines += _wrapped(f"{why}: {', '.join(them)}", "  ", "    ")
    return lines


def _unknown(settings: Settings) -> list[str]:
    """Return the keys that nobody knows, and what stands in the way of knowing them."""
    unknown = settings.unknown()
    lines = ["", *_wrapped(f"settings: {settings.file}, read as {settings.dialect.name}", rest="  ")]
    if settings.elsewhere:
        more = ", ".join(settings.elsewhere)
        lines += _wrapped(f"It takes more from {more}, which was not read: no default is assumed", rest="  ")
    lines += _title("UNKNOWN SETTINGS", unknown)
    if unknown:
        them = [f"{key} (did you mean {near}?)" if near else key for key, near in unknown.items()]
        lines += _wrapped(", ".join(them), "  ", "  ")
    if unknown and settings.missing:
        what = f"They may be options all the same: {', '.join(settings.missing)} cannot be read here"
        lines += _wrapped(what, "  ", "  ")
    return lines


def _title(title: str, what: Collection[object]) -> list[str]:
    """Return the title of what follows and how much that is, or nothing if it is nothing."""
    return ["", f"{title} ({len(what)})"] if what else []


def _by_harm(findings: Iterable[Finding]) -> list[tuple[str, list[str]]]:
    """Return the ids of the defects of each harm that there is, the worst first."""
    found = [(harm, [one.defect for one in findings if one.harm == harm]) for harm in HARMS]
    return [(harm, names) for harm, names in found if names]


def _wrapped(text: str, first: str = "", rest: str = "") -> list[str]:
    return wrap(text, rest, first=first).splitlines()
