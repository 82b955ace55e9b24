"""What `overlay audit` shows: one screen of 80 columns, in which each defect that is not mended has a line.

What is mended is named as far as there is room. What is fixed is counted, and so is what settings exclude.
"""

from __future__ import annotations

import textwrap

from overlay.auditing import met
from overlay.auditing.entries import not_met, unknown
from overlay.base.record import TYPE_CHECKING
from overlay.base.text import WIDTH, wrap
from overlay.defect import HARMS

if TYPE_CHECKING:
    from overlay.auditing.audit import Audit
    from overlay.auditing.judge import Finding

#: Lines of a screen, if what is not mended leaves room.
HEIGHT = 40
#: Said in the place of a selection that leaves all other patches as they are.
_SELECT = "select "


def screen(audit: Audit) -> str:
    """Return the screen."""
    if not audit.findings:
        return "no project that a known defect is of"
    head = [*_wrapped(audit.versions()), *_wrapped(audit.count())]
    urgent, listed = _by_source(audit) if audit.settings is None else _by_settings(audit)
    tail = ["--all says more of each, --explain ID all about one"]
    if any(f"-> {_SELECT}" in line for line in urgent):
        tail = ["OVERLAY_PATCHES=all,A,B selects A and B; --all and --explain ID say more"]
    if audit.settings is not None:
        tail = [*unknown(audit.settings), *tail]
    if audit.plan.site:
        tail.append(f"in {audit.plan.site}")
    room = HEIGHT - len(head) - len(urgent) - len(tail)
    return "\n".join([*head, *urgent, *_cut(listed, room), *tail])


def _by_source(audit: Audit) -> tuple[list[str], list[str]]:
    urgent = _open("PRESENT AND NOT MENDED", audit.of("open"), audit)
    urgent += _ids("NOT KNOWN FOR THIS SOURCE", audit.of("unknown"))
    return urgent, _ids("PRESENT AND MENDED", audit.of("mended"))


def _by_settings(audit: Audit) -> tuple[list[str], list[str]]:
    shown, mended = audit.of("open", "unknown"), audit.of("mended")
    urgent: list[str] = []
    for word in ("met", "untold"):
        them = [one for one in shown if audit.answers[one.defect].word == word]
        urgent += _open(f"NOT MENDED, {met.MET[word].upper()}", them, audit)
    listed = not_met([one for one in shown if audit.is_not_met(one)], audit)
    for word in ("met", "untold"):
        them = [one for one in mended if audit.answers[one.defect].word == word]
        listed += _ids(f"MENDED, {met.MET[word].upper()}", them)
    if rest := sum(map(audit.is_not_met, mended)):
        listed += ["", f"MENDED, {met.MET['not-met'].upper()} ({rest})"]
    return urgent, listed


def _open(title: str, findings: list[Finding], audit: Audit) -> list[str]:
    """Return a line for each, with the way out; where settings meet it, another one with these."""
    lines = ["", f"{title} ({len(findings)})"] if findings else []
    for harm in HARMS:
        them = [one for one in findings if one.harm == harm]
        if them:
            lines.append(f"{harm}: {HARMS[harm]}")
        for one in them:
            lines.append(_short(f"  {one.defect}{_way_out(one)}"))
            answer = audit.answers.get(one.defect)
            if answer is not None and answer.word == "met":
                lines.append(_short(f"    {answer.why}"))
    return lines


def _way_out(finding: Finding) -> str:
    """Return the first thing that can be done, or else why nothing of ours can be."""
    if finding.state == "unknown":
        return ": not known for this source"
    if finding.patch and finding.way_out == f"OVERLAY_PATCHES=all,{finding.patch}":
        return f" -> {_SELECT}{finding.patch}"
    first = finding.way_out.partition("; or ")[0]
    return f" -> {first}" if first else f": {finding.reason}" if finding.reason else ""


def _ids(title: str, findings: list[Finding]) -> list[str]:
    """Return the ids alone, after each harm, in one paragraph."""
    if not findings:
        return []
    them = {harm: [one.defect for one in findings if one.harm == harm] for harm in HARMS}
    said = "; ".join(f"{harm}: {', '.join(names)}" for harm, names in them.items() if names)
    return ["", f"{title} ({len(findings)})", *wrap(said, "  ").splitlines()]


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


def _wrapped(text: str) -> list[str]:
    return wrap(text, "  ", first="").splitlines()
