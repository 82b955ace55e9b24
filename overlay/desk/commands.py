"""The commands that look: at patches, at an installation, and at a process that would start here."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from overlay.defect import HARMS
from overlay.desk.audit.audit import Audit, defect_text, make_audit, screen
from overlay.desk.output import EXIT_LOUD, EXIT_OK, EXIT_USAGE, add_selection, add_sites, folder, say, show
from overlay.errors import OverlayError, SelectionError
from overlay.model import settings, text
from overlay.patch import Patch
from overlay.runtime.engine import Engine
from overlay.source.decide import without_command
from overlay.source.source import Tree
from overlay.source.table import Table
from overlay.verdict import Plan, TargetVerdict, Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from overlay.launch.doctor import Checkup


def add(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands to a parser."""
    add_command("list", _list, "list all patches, and the verdict on each here")
    explain = add_command("explain", _explain, "show everything about one patch, and the verdict on it here")
    explain.add_argument("id", metavar="ID")
    add_sites(explain)
    plan = add_command("plan", _plan, "decide on the selected patches without importing anything")
    add_sites(plan)
    add_selection(plan, "what to select (default: OVERLAY_PATCHES, or all)")
    what = "list the known defects here, and which are patched, without importing anything"
    audit = add_command("audit", _audit, what)
    what = "a site-packages, a checkout, an unpacked wheel (default: what this Python imports)"
    audit.add_argument("path", nargs="*", type=folder, metavar="PATH", help=what)
    add_sites(audit)
    add_selection(audit, "the patches that fix defects (default: all, whatever OVERLAY_PATCHES says)")
    what = "only defects of this harm; repeatable"
    audit.add_argument("--harm", action="append", choices=list(HARMS), help=what)
    what = "the settings of a job: flags, a script with them, overrides or YAML; says which defects they hit"
    audit.add_argument("--settings", metavar="FILE", help=what)
    audit.add_argument("--explain", metavar="ID", help="show everything about one defect, and its state here")
    what = "check that Python is patched here, and say what to do if not"
    add_command("doctor", _doctor, what)


def _list(engine: Engine, arguments: argparse.Namespace) -> int:
    patches = sorted(engine.known().values(), key=lambda patch: patch.id)
    verdicts = {one.patch: one.verdict for one in engine.plan_each().verdicts}
    data = [{**patch.to_dict(), "here": verdicts[patch.id]} for patch in patches]
    selected = engine.chosen("all").ids
    with suppress(OverlayError):  # a wrong selection is no reason to list nothing
        selected = engine.chosen().ids
    named = {one.id for one in patches if one.opt_in and one.id not in selected}
    here = {name: OPT_IN if name in named and word == "apply" else word for name, word in verdicts.items()}
    show(arguments, data, lambda: patch_table(patches, here))
    return EXIT_OK


def _explain(engine: Engine, arguments: argparse.Namespace) -> int:
    known = engine.known()
    if arguments.id not in known:
        near = settings.nearest(arguments.id, sorted(known))
        raise SelectionError(f"there is no patch {arguments.id!r}; {near}")
    patch = known[arguments.id]
    wanted = [patch.id, *patch.requires]
    plan = engine.plan(wanted, arguments.site)
    verdict = next(one for one in plan.verdicts if one.patch == patch.id)
    data = {"patch": patch.to_dict(), "verdict": verdict.to_dict()}
    show(arguments, data, lambda: explanation(patch, verdict, ",".join(wanted), engine.tested()))
    return EXIT_LOUD if verdict.loud else EXIT_OK


def _plan(engine: Engine, arguments: argparse.Namespace) -> int:
    tree = Tree(arguments.site)
    plan = engine.plan(arguments.patches, tree)
    audit = make_audit(engine, plan, tree)
    lines = [plan_table(plan)]
    if audit.findings:
        lines.append(text.wrap(f"known defects: {audit.count()} (see `overlay audit{tree.options()}`)"))
    show(arguments, audit.to_dict(), lambda: "\n".join(lines))
    _remark(tree, [engine.known()[name] for name in plan.selection])
    asked = {one.verdict for one in plan.verdicts if one.patch not in plan.companions}
    if arguments.site and asked - {"not-selected"} == {"not-installed"}:
        return _say_no_upstream(arguments.site, "of a selected patch ")
    for verdict in plan.lost:
        lost = f"without it, {engine.known()[verdict.patch].without}"
        say(f"{verdict.patch} cannot be applied, but jobs go on, as it was not selected by name: {lost}")
    return EXIT_LOUD if plan.loud else EXIT_OK


def _audit(engine: Engine, arguments: argparse.Namespace) -> int:
    sites = [*arguments.path, *(arguments.site or ())]
    tree = Tree(sites or None)
    given = None
    if arguments.settings:
        from overlay.desk.audit.job_settings import read_settings

        given = read_settings(arguments.settings, tree)
    plan = engine.plan_each(tree) if arguments.patches is None else engine.plan(arguments.patches, tree)
    audit = make_audit(engine, plan, tree, given, arguments.harm or ())
    if arguments.explain is not None:
        return _explain_defect(engine, audit, arguments)
    show(arguments, audit.to_dict(), lambda: screen(audit))
    _remark(tree, engine.known().values())
    if not audit.installed:
        return _say_no_upstream(sites)
    return EXIT_LOUD if audit.concerning() else EXIT_OK


def _remark(tree: Tree, patches: Iterable[Patch]) -> None:
    """Say what is odd about the folders in which some patches were looked for."""
    for sentence in tree.remarks({target.project.marker for patch in patches for target in patch.targets}):
        say(sentence)


def _say_no_upstream(sites: Sequence[str], whose: str = "") -> int:
    """Say that nothing was looked at, as there is no upstream, and return the exit code for that."""
    where = f"in {', '.join(sites)}" if sites else f"installed in {sys.executable}"
    say(
        f"no upstream {whose}is {where}, so nothing was checked: name the folders that have one, such as a "
        "site-packages and each checkout"
    )
    return EXIT_USAGE


def _explain_defect(engine: Engine, audit: Audit, arguments: argparse.Namespace) -> int:
    name = arguments.explain
    if name in engine.known():
        fixes = [one for one in sorted(audit.defects) if audit.defects[one].patch == name]
        what = f"; it fixes {', '.join(fixes)}" if fixes else ""
        raise SelectionError(f"{name!r} is a patch: `overlay explain {name}`{what}")
    if name not in audit.defects:
        near = settings.nearest(name, sorted(audit.defects), "docs/defects.md")
        raise SelectionError(f"there is no defect {name!r}; {near}")
    finding = next((one for one in audit.findings if one.defect == name), None)
    data = {"defect": audit.defects[name].to_dict(), "finding": finding and finding.to_dict()}
    show(arguments, data, lambda: defect_text(audit.defects[name], finding))
    return EXIT_LOUD if finding in audit.concerning() else EXIT_OK


def _doctor(engine: Engine, arguments: argparse.Namespace) -> int:
    from overlay.launch.doctor import examine

    found = examine(engine)
    show(arguments, found.to_dict(), lambda: checkup_text(found))
    return EXIT_OK if found.armed else EXIT_LOUD


#: Stands for the verdict on a patch that would apply, but that only its id selects.
OPT_IN = "opt-in"


def patch_table(items: Iterable[Patch], verdicts: Mapping[str, str]) -> str:
    """Return the table of `overlay list`: patches of installed projects come first."""
    rows = []
    for patch in items:
        opt_in = " (opt-in)" if patch.opt_in and verdicts[patch.id] != OPT_IN else ""
        rows.append((patch.id, verdicts[patch.id], f"{patch.summary}{opt_in}"))
    rows.sort(key=lambda row: row[1] == "not-installed")
    return text.table(("patch", "here", "summary"), rows)


def plan_table(item: Plan) -> str:
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
        kept = "no, except by rounding."
        if "numbers" in patch.changes:
            kept = "YES, under the settings below. Any other job keeps its numbers."
        lines.append(text.wrap(f"Changes the numbers of a running job: {kept}"))
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
    detail = without_command(_detail(verdict))  # they follow here
    lines += ["", text.wrap(f"Here: {verdict.verdict}" + (f", {detail}" if detail else ""))]
    lines += _findings(verdict)
    return "\n".join(lines)


def checkup_text(item: Checkup) -> str:
    """Return what `overlay doctor` prints."""
    yes, said = ("yes", "is patched") if item.armed else ("no", "is NOT patched")
    lines = [f"{yes}: a Python process that starts here and now {said}"]
    if {check.name for check in item.checks if check.answer == "no"} == {"OVERLAY"}:  # in a plain shell
        lines.append(text.wrap("Only OVERLAY=1 is missing: a process that `overlay run` starts is patched."))
    rows = [(f"{check.name:<14}{check.answer:<3}  ", check.found) for check in item.checks]
    lines += ["", *(text.wrap(found, " " * 19, first=head) for head, found in rows)]
    each = " (all of these)" * (len(item.todo) > 1)
    lines += ["", "next:" if item.armed else f"what to do{each}:"]
    lines += [text.wrap(todo, "    ", first="  " if item.armed else "  - ") for todo in item.todo]
    return "\n".join(lines)


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
