"""Tables for the terminal. JSON is the contract; these are views of the same data, 80 columns wide."""

from __future__ import annotations

from collections import Counter

from overlay.model import text
from overlay.source.decide import sites_in

#: Stands for the verdict on a patch that would apply, but that only its id selects.
OPT_IN = "opt-in"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from overlay.launch.doctor import Checkup
    from overlay.patch import Patch
    from overlay.source.packs import Pack
    from overlay.source.table import Table
    from overlay.verdict import Plan, TargetVerdict, Verdict


def patches(items: Iterable[Patch], verdicts: Mapping[str, str]) -> str:
    """Return the table of `overlay list`: those that are of use here come first."""
    rows = []
    for patch in items:
        opt_in = " (opt-in)" if patch.opt_in and verdicts[patch.id] != OPT_IN else ""
        rows.append((patch.id, verdicts[patch.id], f"{patch.summary}{opt_in}"))
    rows.sort(key=lambda row: row[1] == "not-installed")
    return text.table(("patch", "here", "summary"), rows)


def plan(item: Plan) -> str:
    """Return the table of `overlay plan`. What is not installed or not selected is counted."""
    shown = [one for one in item.verdicts if one.verdict not in ("not-installed", "not-selected")]
    rows = [(verdict.patch, verdict.verdict, _detail(verdict)) for verdict in shown]
    others = Counter(
        "as not selected or opt-in" if one.verdict == "not-selected" else f"because {one.reason}"
        for one in item.verdicts
        if one not in shown
    )
    head = ("patch", "verdict", "why")
    parts = [text.table(head, rows) if rows else "no selected patch is for anything that is installed here"]
    parts += [text.wrap(f"left out {why}: {count}") for why, count in others.items()]
    return "\n".join([*parts, f"in {item.site}"] if item.site else parts)


def explanation(patch: Patch, verdict: Verdict, alone: str, table: Table) -> str:
    """Return what `overlay explain` prints. `alone`: the selection of the patch, and of nothing else."""
    lines = [text.wrap(f"{patch.id}: {patch.summary}"), "", text.wrap(patch.why), ""]
    if patch.changes:
        lines.append(text.wrap(_on_numbers(patch)))
        lines.append(text.wrap(f"What it changes: {', '.join(patch.changes)}. When: {patch.met}"))
    lines.append(text.wrap(f"To apply it alone: overlay run --patches {alone} COMMAND"))
    if patch.opt_in:
        lines.append(text.wrap(f"Opt-in: `all` leaves it out, OVERLAY_PATCHES=all,{patch.id} takes it"))
    if patch.evidence:
        lines.append(text.wrap(f"{'Why it is a choice' if patch.opt_in else 'Evidence'}: {patch.evidence}"))
    lines.append(text.wrap(f"Upstream: {', '.join(patch.upstream)}"))
    if patch.requires:
        lines.append(f"Requires: {', '.join(patch.requires)}")
    for target in patch.targets:
        found = table.rows(patch, target)
        rows = [(row.means, ": ".join(filter(None, [", ".join(row.sources()), row.reason]))) for row in found]
        kind = " (optional)" if target.optional else ""
        kind += f" (for {target.serves} alone)" if target.serves else ""
        lines += ["", f"{target.project.name}{kind}", text.table(("verdict (variant)", "tested on"), rows)]
    detail = _detail(verdict).replace(sites_in(patch.id), "")  # they follow here
    lines += ["", text.wrap(f"Here: {verdict.verdict}" + (f", {detail}" if detail else ""))]
    lines += _findings(verdict)
    return "\n".join(lines)


def _on_numbers(patch: Patch) -> str:
    said = "Changes the numbers of a running job:"
    if "numbers" in patch.changes:
        return f"{said} YES, under the settings below. Any other job keeps its numbers."
    return f"{said} no, except by rounding."


def checkup(item: Checkup) -> str:
    """Return what `overlay doctor` prints."""
    said = "is patched" if item.armed else "is NOT patched"
    lines = [f"{'yes' if item.armed else 'no'}: a Python process that starts here and now {said}"]
    wrong = {check.name for check in item.checks if check.answer == "no"}
    if "OVERLAY" in wrong <= {"OVERLAY", "Ray workers"}:  # as in every plain shell
        lines.append(text.wrap("Only OVERLAY=1 is missing: a process that `overlay run` starts is patched."))
    lines.append("")
    for check in item.checks:
        first = f"{check.name:<14}{check.answer:<3}  "
        lines.append(text.wrap(check.found, " " * 19, first=first))
    each = " (all of these)" * (len(item.todo) > 1)
    lines += ["", f"what to do{each}:" if not item.armed else "next:"]
    lines += [text.wrap(todo, "    ", first="  - " if not item.armed else "  ") for todo in item.todo]
    return "\n".join(lines)


def packs(items: Sequence[Pack], wanted: Sequence[str]) -> str:
    """Return the table of `overlay packs`."""
    if not items:
        return "no pack is installed"
    rows = []
    for pack in items:
        where = f"{pack.distribution} {pack.version}"
        if pack.name in wanted:
            rows.append((pack.name, "loaded", where))
        else:
            rows.append((pack.name, "not loaded", f"{where}; OVERLAY_PACKS={pack.name} loads it"))
    return text.table(("pack", "state", "distribution"), rows)


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
    """Return what was asked of each site, and what was found where it is not so."""
    lines = []
    for finding in (finding for target in verdict.targets for finding in target.findings):
        asks = f" ({finding.asks})" if finding.asks else ""
        lines.append(f"  {'ok ' if finding.holds else 'NOT'} {finding.expects:<8}{finding.site}{asks}")
        if not finding.holds:
            lines.append(text.wrap(finding.found, indent=" " * 6))
    return lines
