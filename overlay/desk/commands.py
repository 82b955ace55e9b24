"""The commands that look: at patches, at an installation, and at a process that would start here."""

from __future__ import annotations

import sys
from contextlib import suppress

from overlay.defect import HARMS
from overlay.desk import tables
from overlay.desk.output import (
    EXIT_LOUD,
    EXIT_OK,
    EXIT_USAGE,
    add_selection,
    add_sites,
    folder,
    say,
    show,
)
from overlay.errors import OverlayError, SelectionError
from overlay.model import settings, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Sequence

    from overlay.desk.audit.audit import Audit
    from overlay.patch import Patch
    from overlay.runtime.engine import Engine
    from overlay.source.source import InstalledTree


def add(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands to a parser."""
    add_command("list", _list, "list all patches, and the verdict on each here")
    explain = add_command("explain", _explain, "show everything about one patch, and the verdict on it here")
    explain.add_argument("id", metavar="ID")
    add_sites(explain)
    add_command("packs", _packs, "list the installed packs without importing them")
    plan = add_command("plan", _plan, "decide on the selected patches without importing anything")
    add_sites(plan)
    add_selection(plan, "what to select (default: OVERLAY_PATCHES, or all)")
    audit = add_command(
        "audit", _audit, "list the known defects here, and which are patched, without importing anything"
    )
    what = "a site-packages, a checkout, an unpacked wheel (default: what this Python imports)"
    audit.add_argument("path", nargs="*", metavar="PATH", help=what)
    add_sites(audit)
    what = "the patches that fix defects (default: all, whatever OVERLAY_PATCHES says)"
    add_selection(audit, what)
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
    here = {
        name: tables.OPT_IN if name in named and word == "apply" else word for name, word in verdicts.items()
    }
    show(arguments, data, lambda: tables.patches(patches, here))
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
    show(arguments, data, lambda: tables.explanation(patch, verdict, ",".join(wanted), engine.tested()))
    return EXIT_LOUD if verdict.loud else EXIT_OK


def _packs(_: Engine, arguments: argparse.Namespace) -> int:
    from overlay.source.packs import installed

    found, wanted = installed(), settings.packs()
    data = [{**pack.to_dict(), "loaded": pack.name in wanted} for pack in found]
    show(arguments, data, lambda: tables.packs(found, wanted))
    return EXIT_OK


def _plan(engine: Engine, arguments: argparse.Namespace) -> int:
    from overlay.desk.audit.audit import make_audit
    from overlay.source.source import InstalledTree

    tree = InstalledTree(arguments.site)
    plan = engine.plan(arguments.patches, tree)
    audit = make_audit(engine, plan, tree)
    lines = [tables.plan(plan)]
    if audit.findings:
        lines.append(text.wrap(f"known defects: {audit.count()} (see `overlay audit`)"))
    show(arguments, audit.to_dict(), lambda: "\n".join(lines))
    _remark(tree, [engine.known()[name] for name in plan.selection])
    if arguments.site and {one.verdict for one in plan.verdicts} - {"not-selected"} == {"not-installed"}:
        return _say_no_upstream(arguments.site)
    for verdict in plan.lost:
        lost = f"without it, {engine.known()[verdict.patch].without}"
        say(f"{verdict.patch} cannot be applied, but jobs go on, as it was not selected by name: {lost}")
    return EXIT_LOUD if plan.loud else EXIT_OK


def _audit(engine: Engine, arguments: argparse.Namespace) -> int:
    from overlay.desk.audit.audit import make_audit, read_settings
    from overlay.desk.audit.text import screen
    from overlay.source.source import InstalledTree

    sites = [*map(folder, arguments.path), *(arguments.site or ())]
    tree = InstalledTree(sites or None)
    given = read_settings(arguments.settings, tree) if arguments.settings else None
    by_default = arguments.patches is None
    plan = engine.plan_each(tree) if by_default else engine.plan(arguments.patches, tree)
    # Of the patches that only their ids select, a job has none unless somebody names them.
    selected = engine.chosen("all").ids if by_default else None
    audit = make_audit(engine, plan, tree, selected=selected, settings=given, harms=arguments.harm or ())
    if arguments.explain:
        return _explain_defect(engine, audit, arguments)
    show(arguments, audit.to_dict(), lambda: screen(audit))
    _remark(tree, engine.known().values())
    if not audit.installed:
        return _say_no_upstream(sites)
    return EXIT_LOUD if audit.concerning() else EXIT_OK


def _remark(tree: InstalledTree, patches: Iterable[Patch]) -> None:
    """Say what is odd about the folders in which some patches were looked for."""
    for sentence in tree.remarks({target.project.marker for patch in patches for target in patch.targets}):
        say(sentence)


def _say_no_upstream(sites: Sequence[str]) -> int:
    """Say that nothing was looked at, as there is no upstream, and return the exit code for that."""
    where = f"in {', '.join(sites)}" if sites else f"installed in {sys.executable}"
    say(
        f"no upstream is {where}, so nothing was checked: name the folders that have one, such as a "
        "site-packages and each checkout"
    )
    return EXIT_USAGE


def _explain_defect(engine: Engine, audit: Audit, arguments: argparse.Namespace) -> int:
    from overlay.desk.audit.text import explanation

    name = arguments.explain
    if name in engine.known():
        fixes = [one for one in sorted(audit.defects) if audit.defects[one].patch == name]
        what = f"; it fixes {', '.join(fixes)}" if fixes else ""
        raise SelectionError(f"{name!r} is a patch: `overlay explain {name}`{what}")
    if name not in audit.defects:
        near = settings.nearest(name, sorted(audit.defects), "docs/defects.md")
        raise SelectionError(f"there is no defect {name!r}; {near}")
    finding = next((one for one in audit.findings if one.defect == name), None)
    data = {
        "defect": audit.defects[name].to_dict(),
        "finding": None if finding is None else finding.to_dict(),
    }
    show(arguments, data, lambda: explanation(audit.defects[name], finding))
    return EXIT_LOUD if finding in audit.concerning() else EXIT_OK


def _doctor(engine: Engine, arguments: argparse.Namespace) -> int:
    from overlay.launch.doctor import examine

    found = examine(engine)
    show(arguments, found.to_dict(), lambda: tables.checkup(found))
    return EXIT_OK if found.armed else EXIT_LOUD
