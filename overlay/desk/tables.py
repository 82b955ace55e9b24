"""Tables for the terminal. JSON is the contract; these are views of the same data, 80 columns wide.

On a terminal verdicts and states get a colour, unless `NO_COLOR` is set.
"""

from __future__ import annotations

import os
import sys
from collections import Counter

from overlay.model import text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from overlay.launch.doctor import Checkup
    from overlay.patch import Patch
    from overlay.source.packs import Pack
    from overlay.source.table import Table
    from overlay.verdict import Plan, TargetVerdict, Verdict

_GREEN, _RED = "32", "1;31"
_COLOURS = {
    **dict.fromkeys(("apply", "yes"), _GREEN),
    **dict.fromkeys(("unknown-source", "conflict", "no"), _RED),
}


def patches(items: Iterable[Patch], verdicts: Mapping[str, str]) -> str:
    """Return the table of `overlay list`: those that are of use here come first."""
    rows = []
    for patch in items:
        opt_in = " (opt-in)" if patch.opt_in else ""
        rows.append((f"{patch.id}@{patch.revision}", verdicts[patch.id], f"{patch.summary}{opt_in}"))
    rows.sort(key=lambda row: row[1] == "not-installed")
    return _table(("patch", "here", "summary"), rows)


def plan(item: Plan, *, findings: bool) -> str:
    """Return the table of `overlay plan`, with `findings` that of `overlay audit --sites`."""
    shown = [one for one in item.verdicts if findings or one.verdict not in ("not-installed", "not-selected")]
    rows = [(verdict.patch, verdict.verdict, _detail(verdict)) for verdict in shown]
    parts = [_table(("patch", "verdict", "why"), rows)]
    if findings:
        parts += [line for verdict in item.verdicts for line in _findings(verdict)]
    others = Counter(
        "not selected" if one.verdict == "not-selected" else one.reason
        for one in item.verdicts
        if one not in shown
    )
    parts += [text.wrap(f"left out, {why}: {count}") for why, count in others.items()]
    if item.site:
        parts.append(f"in {item.site}")
    return "\n".join(parts)


def explanation(patch: Patch, verdict: Verdict, alone: str, table: Table) -> str:
    """Return what `overlay explain` prints. `alone`: the selection of the patch, and of nothing else."""
    lines = [text.wrap(f"{patch.id}@{patch.revision}: {patch.summary}"), "", text.wrap(patch.why), ""]
    if patch.changes:
        lines.append(text.wrap(_on_numbers(patch)))
        lines.append(text.wrap(f"Changes in a job: {', '.join(patch.changes)}. Met under: {patch.met}"))
    lines.append(f"Alone: overlay run --patches {alone} COMMAND")
    if patch.opt_in:
        lines.append(text.wrap(f"Opt-in: `all` leaves it out, OVERLAY_PATCHES=all,{patch.id} takes it"))
    if patch.evidence:
        lines.append(text.wrap(f"{'Why it is a choice' if patch.opt_in else 'Exact'}: {patch.evidence}"))
    lines.append(text.wrap(f"Upstream: {', '.join(patch.upstream)}"))
    if patch.requires:
        lines.append(f"Requires: {', '.join(patch.requires)}")
    for target in patch.targets:
        found = table.rows(patch, target)
        rows = [(row.means, ": ".join(filter(None, [", ".join(row.sources()), row.reason]))) for row in found]
        kind = " (optional)" if target.optional else ""
        kind += f" (for {target.serves} alone)" if target.serves else ""
        lines += ["", f"{target.project.name}{kind}", _table(("verdict", "tested on"), rows)]
    detail = _detail(verdict)
    lines += ["", text.wrap(f"Here: {verdict.verdict}" + (f", {detail}" if detail else ""))]
    lines += _findings(verdict)
    return "\n".join(lines)


def _on_numbers(patch: Patch) -> str:
    said = "Changes the numbers of a running job:"
    if "numbers" in patch.changes:
        return f"{said} YES, under the settings below. A job that does not meet them keeps its numbers."
    return f"{said} no (by rounding at most)."


def checkup(item: Checkup) -> str:
    """Return what `overlay doctor` prints."""
    said = "is patched" if item.armed else "is NOT patched"
    lines = [f"{'yes' if item.armed else 'no'}: a Python process that starts here and now {said}", ""]
    for check in item.checks:
        first = f"{check.name:<14}{_colour(check.answer, 3)}  "
        lines.append(text.wrap(check.found, " " * 19, first=first))
    lines += ["", "what to do:" if not item.armed else "next:"]
    lines += [text.wrap(todo, "    ", first="  - " if not item.armed else "  ") for todo in item.todo]
    return "\n".join(lines)


def packs(items: Sequence[Pack], wanted: Sequence[str]) -> str:
    """Return the table of `overlay packs`."""
    rows = []
    for pack in items:
        where = f"{pack.distribution} {pack.version}"
        if pack.name in wanted:
            rows.append((pack.name, "loaded", where))
        else:
            rows.append((pack.name, "not loaded", f"{where}; OVERLAY_PACKS={pack.name} loads it"))
    return _table(("pack", "state", "distribution"), rows)


def _detail(verdict: Verdict) -> str:
    if verdict.verdict == "apply":
        return ", ".join(_target(target) for target in verdict.targets if target.version)
    return verdict.reason


def _target(target: TargetVerdict) -> str:
    said = f"{target.project} {target.version}"
    if target.metadata_version:
        said += f" (its metadata says {target.metadata_version})"
    if target.verdict != "apply":
        said += f" ({target.verdict})"
    elif target.trusted:
        said += f" (trusted here: {target.trusted})"
    elif target.reason:
        said += f", {target.reason}"
    return said


def _findings(verdict: Verdict) -> list[str]:
    lines = []
    for target in verdict.targets:
        for finding in target.findings:
            mark = "ok " if finding.holds else "NOT"
            asks = f" ({finding.asks})" if finding.asks else ""
            lines.append(f"  {mark} {finding.expects:<8}{finding.site}{asks}")
            if not finding.holds:
                lines.append(text.wrap(finding.found, indent=" " * 6))
    return [f"{verdict.patch}:", *lines] if lines else []


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return text.table(head, rows, _colour)


def _colour(cell: str, width: int) -> str:
    padded = f"{cell:<{width}}"
    dull = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not sys.stdout.isatty()
    return padded if dull or cell not in _COLOURS else f"\x1b[{_COLOURS[cell]}m{padded}\x1b[0m"
