"""`overlay plan`: the verdict on each patch, here or in another installation."""

from __future__ import annotations

from overlay.base import text
from overlay.commands import tables
from overlay.commands.output import EXIT_LOUD, EXIT_OK, SELECTION, add_sites, say, say_no_upstream, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from overlay.enabling.engine import Engine


def add(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command to a parser."""
    plan = add_command("plan", _plan, "decide on the selected patches without importing anything")
    add_sites(plan)
    what = f"what to select (default: OVERLAY_PATCHES, or all): {SELECTION}"
    plan.add_argument("--patches", metavar="SELECTION", help=what)


def _plan(engine: Engine, arguments: argparse.Namespace) -> int:
    from overlay.auditing.audit import make_audit
    from overlay.reading.source import InstalledTree

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
        return say_no_upstream(arguments.site)
    for verdict in plan.lost:
        lost = f"nobody named it: without it, {engine.known()[verdict.patch].without}"
        say(f"{verdict.patch} cannot be applied, which stops nothing, as {lost}")
    return EXIT_LOUD if plan.loud else EXIT_OK
