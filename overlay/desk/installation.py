"""`overlay plan` and `overlay audit`: the verdicts on patches, and the known defects, of an installation."""

from __future__ import annotations

from overlay.defect import HARMS
from overlay.desk import tables
from overlay.desk.output import (
    EXIT_LOUD,
    EXIT_OK,
    EXIT_USAGE,
    SELECTION,
    add_sites,
    folder,
    say,
    show,
)
from overlay.errors import SelectionError
from overlay.model import text

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from overlay.desk.audit.audit import Audit
    from overlay.runtime.engine import Engine

#: What stands for the path of this interpreter where a folder is asked for.
INSTALLED = "installed"


def add(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands to a parser."""
    plan = add_command("plan", _plan, "decide on the selected patches without importing anything")
    add_sites(plan)
    what = f"what to select (default: OVERLAY_PATCHES, or all): {SELECTION}"
    plan.add_argument("--patches", metavar="SELECTION", help=what)
    audit = add_command(
        "audit", _audit, "say what is known to be wrong here, and what is mended, importing nothing"
    )
    what = "a site-packages, a checkout, an unpacked wheel; `installed` (default) is what this Python imports"
    audit.add_argument("path", nargs="*", metavar="PATH", help=what)
    add_sites(audit)
    what = "by which patches a defect counts as mended (default: all, whatever OVERLAY_PATCHES says)"
    audit.add_argument("--patches", metavar="SELECTION", help=what)
    audit.add_argument("--harm", action="append", choices=list(HARMS), help="only of this harm; repeatable")
    what = "the settings of a job: flags, a script with them, overrides or YAML; says which defects they meet"
    audit.add_argument("--settings", metavar="FILE", help=what)
    audit.add_argument(
        "--all", action="store_true", help="print an entry for each defect, on more than a screen"
    )
    audit.add_argument("--explain", metavar="ID", help="say all about one defect, and what it is here")
    what = "print what is decided on each patch, and the sites that decided, instead of the defects"
    audit.add_argument("--sites", action="store_true", help=what)


def _plan(engine: Engine, arguments: argparse.Namespace) -> int:
    from overlay.desk.audit.audit import make_audit
    from overlay.source.source import InstalledTree

    tree = InstalledTree(arguments.site, arguments.root)
    plan = engine.plan(arguments.patches, tree)
    audit = make_audit(engine, plan, tree)
    pointer = (
        text.wrap(f"known defects: {audit.count()}: `overlay audit` names them") if audit.findings else ""
    )
    show(
        arguments,
        audit.to_dict(),
        lambda: "\n".join(filter(None, [tables.plan(plan, findings=False), pointer])),
    )
    patches = [engine.known()[name] for name in plan.selection]
    for sentence in tree.remarks({target.project.marker for patch in patches for target in patch.targets}):
        say(sentence)
    selected = {one.verdict for one in plan.verdicts} - {"not-selected"}
    if arguments.site and selected == {"not-installed"}:
        return _say_no_upstream(arguments.site)
    for verdict in plan.lost:
        lost = f"nobody named it: without it, {engine.known()[verdict.patch].without}"
        say(f"{verdict.patch} cannot be applied, which stops nothing, as {lost}")
    return EXIT_LOUD if plan.loud else EXIT_OK


def _audit(engine: Engine, arguments: argparse.Namespace) -> int:
    from overlay.desk.audit.audit import make_audit, read_settings
    from overlay.source.source import InstalledTree

    if INSTALLED in arguments.path and len(arguments.path) + len(arguments.site or ()) > 1:
        raise SelectionError(f"`{INSTALLED}` is what this Python imports, and goes without other folders")
    sites = [*(folder(path) for path in arguments.path if path != INSTALLED), *(arguments.site or ())]
    tree = InstalledTree(sites or None, arguments.root)
    settings = read_settings(arguments.settings, tree) if arguments.settings else None
    by_default = arguments.patches is None
    plan = engine.plan_each(tree) if by_default else engine.plan(arguments.patches, tree)
    # Of the patches that only their ids select, a job has none unless somebody names them.
    selected = engine.chosen("all").ids if by_default else None
    harms = arguments.harm or ()
    audit = make_audit(engine, plan, tree, selected=selected, settings=settings, harms=harms)
    if arguments.explain:
        return _explain(audit, arguments)
    show(arguments, audit.to_dict(), lambda: _text(audit, arguments))
    markers = {target.project.marker for patch in engine.known().values() for target in patch.targets}
    for sentence in tree.remarks(markers):
        say(sentence)
    if sites and not plan.selection:
        return EXIT_OK
    if sites and not any(one.version for verdict in plan.verdicts for one in verdict.targets):
        return _say_no_upstream(sites)
    return EXIT_LOUD if audit.concerning() else EXIT_OK


def _say_no_upstream(sites: Sequence[str]) -> int:
    """Say that some folders hold no upstream, and return the exit code for that."""
    where = ", ".join(sites)
    say(
        f"no upstream of a selected patch is in {where}: name the folders of the path, such as "
        "the site-packages and each checkout"
    )
    return EXIT_USAGE


def _text(audit: Audit, arguments: argparse.Namespace) -> str:
    if arguments.sites:
        return tables.plan(audit.plan, findings=True)
    from overlay.desk.audit.text import entries, screen

    return entries(audit) if arguments.all and audit.findings else screen(audit)


def _explain(audit: Audit, arguments: argparse.Namespace) -> int:
    from overlay.desk.audit.text import explanation
    from overlay.model.settings import nearest

    name = arguments.explain
    if name not in audit.defects:
        raise SelectionError(f"there is no defect {name!r}; {nearest(name, sorted(audit.defects))}")
    finding = next((one for one in audit.findings if one.defect == name), None)
    data = {
        "defect": audit.defects[name].to_dict(),
        "finding": None if finding is None else finding.to_dict(),
    }
    show(arguments, data, lambda: explanation(audit.defects[name], finding))
    return EXIT_LOUD if finding in audit.concerning() else EXIT_OK
