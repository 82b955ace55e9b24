"""`overlay list`, `explain` and `packs`: all patches, the details of one, and packs by third parties."""

from __future__ import annotations

from overlay.desk import tables
from overlay.desk.output import EXIT_LOUD, EXIT_OK, add_sites, show
from overlay.errors import SelectionError
from overlay.model import settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from overlay.runtime.engine import Engine


def add(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands to a parser."""
    add_command("list", _list, "list the patches, and what each comes to with what is installed here")
    explain = add_command("explain", _explain, "say all about one patch, and what is decided for it here")
    explain.add_argument("id", metavar="ID")
    add_sites(explain)
    add_command("packs", _packs, "list the packs that are installed, without importing them")


def _list(engine: Engine, arguments: argparse.Namespace) -> int:
    patches = sorted(engine.known().values(), key=lambda patch: patch.id)
    verdicts = {one.patch: one.verdict for one in engine.plan_each().verdicts}
    show(
        arguments,
        [{**patch.to_dict(), "here": verdicts[patch.id]} for patch in patches],
        lambda: tables.patches(patches, verdicts),
    )
    return EXIT_OK


def _explain(engine: Engine, arguments: argparse.Namespace) -> int:
    known = engine.known()
    if arguments.id not in known:
        near = settings.nearest(arguments.id, sorted(known))
        raise SelectionError(f"there is no patch {arguments.id!r}; {near}")
    patch = known[arguments.id]
    wanted = [patch.id, *patch.requires]
    verdict = next(
        v for v in engine.plan(wanted, arguments.site, arguments.root).verdicts if v.patch == patch.id
    )
    alone = ",".join(wanted)
    show(
        arguments,
        {"patch": patch.to_dict(), "verdict": verdict.to_dict()},
        lambda: tables.explanation(patch, verdict, alone, engine.tested()),
    )
    return EXIT_LOUD if verdict.loud else EXIT_OK


def _packs(_: Engine, arguments: argparse.Namespace) -> int:
    from overlay.source.packs import installed

    found = installed()
    wanted = settings.packs()
    data = [{**pack.to_dict(), "loaded": pack.name in wanted} for pack in found]
    show(arguments, data, lambda: tables.packs(found, wanted))
    return EXIT_OK
