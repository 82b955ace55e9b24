"""All that an audit has to say, in 80 columns: what has to be looked at first, the worst on top."""

from __future__ import annotations

import textwrap

from overlay.auditing import met
from overlay.base.record import TYPE_CHECKING
from overlay.base.text import WIDTH, wrap
from overlay.defect import HARMS, READ

if TYPE_CHECKING:
    from collections.abc import Iterable

    from overlay.auditing.audit import Audit
    from overlay.auditing.judge import Finding
    from overlay.auditing.met import Settings
    from overlay.defect import Defect


def entries(audit: Audit) -> str:
    """Return each finding with its words, of an audit that has some."""
    lines = _wrapped(audit.versions(), "", "")
    lines += _wrapped(f"known defects: {audit.count()}", "", "  ")
    shown = [*audit.of("open"), *audit.of("unknown")]
    if audit.settings is None:
        lines += _open("PRESENT AND NOT MENDED", audit.of("open"), audit)
        lines += _ids("NOT KNOWN FOR THIS SOURCE (--explain says why)", audit.of("unknown"))
        lines += _ids("PRESENT AND MENDED", audit.of("mended"))
    else:
        for word in ("met", "untold"):
            them = [one for one in shown if audit.answers[one.defect].word == word]
            lines += _open(f"NOT MENDED, {met.MET[word].upper()}", them, audit)
        lines += not_met([one for one in shown if audit.is_not_met(one)], audit)
        for word in met.MET:
            them = [one for one in audit.of("mended") if audit.answers[one.defect].word == word]
            lines += _ids(f"MENDED, {met.MET[word].upper()}", them)
    lines += _fixed(audit)
    if audit.settings is not None:
        lines += unknown(audit.settings)
    lines += ["", "overlay audit --explain ID says all about one, --json about all"]
    return "\n".join([*lines, f"in {audit.plan.site}"] if audit.plan.site else lines)


def text(defect: Defect, finding: Finding | None = None) -> str:
    """Return all about one defect."""
    lines = [f"{defect.id}: {defect.harm}, {HARMS[defect.harm]}", ""]
    lines += _wrapped(defect.summary, "", "")
    lines += ["", *_wrapped(f"Met under: {defect.met}", "", "")]
    lines += _wrapped(f"Upstream: {', '.join(defect.upstream) or 'not reported'}", "", "")
    fixed = f"{defect.project.name} {defect.fixed}" if defect.fixed else "in no release"
    lines += _wrapped(f"Fixed: {fixed}", "", "")
    read = "read in the source; no run has shown it"
    lines += _wrapped(f"Shown: {read if defect.shown == READ else f'measured by {defect.shown}'}", "", "")
    lines += _wrapped(f"Mended by: {defect.patch or 'no patch'}", "", "")
    if defect.way_out:
        lines += _wrapped(f"Way out: {defect.way_out}", "", "")
    if finding is not None:
        from overlay.auditing.judge import STATES

        here = ". ".join(filter(None, [f"Here: {STATES[finding.state]}", finding.reason, finding.way_out]))
        lines += ["", *_wrapped(here, "", "")]
    return "\n".join(lines)


def _open(title: str, findings: list[Finding], audit: Audit) -> list[str]:
    """Return an entry for each: its words, and the way out."""
    lines = ["", f"{title} ({len(findings)})"] if findings else []
    for one in findings:
        answer = audit.answers.get(one.defect)
        known = " (not known for this source)" if one.state == "unknown" else ""
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
    lines = ["", f"{title} ({len(findings)})"] if findings else []
    for harm in HARMS:
        them = [one.defect for one in findings if one.harm == harm]
        if them:
            lines += _wrapped(", ".join(them), f"{harm:<14} ", " " * 15)
    return lines


def not_met(findings: Iterable[Finding], audit: Audit) -> list[str]:
    """Return them by the settings that decide: not safe, but not met by these."""
    reasons: dict[str, list[str]] = {}
    for one in findings:
        reasons.setdefault(audit.answers[one.defect].why, []).append(one.defect)
    count = sum(map(len, reasons.values()))
    lines = ["", f"NOT MENDED, {met.MET['not-met'].upper()} ({count})"] if reasons else []
    for why, them in reasons.items():
        lines += _wrapped(f"{why}: {', '.join(them)}", "  ", "    ")
    return lines


def _fixed(audit: Audit) -> list[str]:
    found = audit.of("fixed")
    if not found:
        return []
    them = ", ".join(
        f"{one.defect} ({fix})" if (fix := audit.defects[one.defect].fixed) else one.defect for one in found
    )
    return ["", f"FIXED UPSTREAM ({len(found)})", *_wrapped(them, "  ", "  ")]


def unknown(settings: Settings) -> list[str]:
    """Return the keys that nobody knows, and what stands in the way of knowing them."""
    unknown = settings.unknown()
    lines = ["", *_wrapped(f"settings: {settings.file}, read as {settings.dialect.name}", "", "  ")]
    if settings.elsewhere:
        what = (
            f"It takes more from {', '.join(settings.elsewhere)}, which was not read: no default is assumed"
        )
        lines += _wrapped(what, "", "  ")
    if unknown:
        them = [f"{key} (did you mean {near}?)" if near else key for key, near in unknown.items()]
        lines += ["", f"UNKNOWN SETTINGS ({len(unknown)})", *_wrapped(", ".join(them), "  ", "  ")]
    if unknown and settings.missing:
        what = f"They may be options all the same: {', '.join(settings.missing)} cannot be read here"
        lines += _wrapped(what, "  ", "  ")
    return lines


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    return wrap(text, rest, first=first).splitlines()
