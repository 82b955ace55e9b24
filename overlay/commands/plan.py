"""`overlay plan` and `overlay audit`: what is decided, here or in another installation."""

from __future__ import annotations

from overlay.commands import tables
from overlay.commands.output import EXIT_LOUD, EXIT_OK, EXIT_USAGE, SELECTION, add_sites, say, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from overlay.enabling.engine import Engine
    from overlay.verdict import Plan


def add(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands to a parser."""
    plan = add_command("plan", _plan, "decide on the selected patches without importing anything")
    audit = add_command(
        "audit", _plan, "decide on all patches without importing anything, with the sites that decided"
    )
    for sub, default in ((plan, "OVERLAY_PATCHES, or all"), (audit, "all, whatever OVERLAY_PATCHES says")):
        add_sites(sub)
        what = f"what to select (default: {default}): {SELECTION}"
        sub.add_argument("--patches", metavar="SELECTION", help=what)
        sub.set_defaults(all=sub is audit)


def _plan(engine: Engine, arguments: argparse.Namespace) -> int:
    from overlay.reading.source import InstalledTree

    patches = engine.everything() if arguments.patches is None and arguments.all else arguments.patches
    tree = InstalledTree(arguments.site, arguments.root)
    plan = engine.plan(patches, tree)
    show(arguments, plan.to_dict(), lambda: tables.plan(plan, findings=arguments.all))
    for sentence in tree.remarks(_markers(engine, plan)):
        say(sentence)
    selected = {one.verdict for one in plan.verdicts} - {"not-selected"}
    if arguments.site and selected == {"not-installed"}:
        where = ", ".join(arguments.site)
        say(
            f"no upstream of a selected patch is in {where}: name the folders of the path, such as "
            "the site-packages and each checkout"
        )
        return EXIT_USAGE
    for verdict in plan.lost:
        lost = f"nobody named it: without it, {engine.known()[verdict.patch].without}"
        say(f"{verdict.patch} cannot be applied, which stops nothing, as {lost}")
    return EXIT_LOUD if plan.loud else EXIT_OK


def _markers(engine: Engine, plan: Plan) -> set[str]:
    """Return a module of each project that a plan is about."""
    patches = [engine.known()[name] for name in plan.selection]
    return {target.project.marker for patch in patches for target in patch.targets}
