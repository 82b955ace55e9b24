"""`overlay prove`: the contracts of patches, run on what is installed here."""

from __future__ import annotations

import secrets
import signal

from overlay.desk.output import EXIT_LOUD, EXIT_OK, show
from overlay.desk.prove import prove, table, writing
from overlay.errors import SelectionError
from overlay.source.decide import version_of
from overlay.source.registry import recorded_projects
from overlay.source.source import InstalledTree

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from overlay.patch import Patch
    from overlay.runtime.engine import Engine
    from overlay.verdict import Plan, Verdict

#: Seconds for one run of a contract, on a machine that is busy.
PATIENCE = 240.0
#: Seconds that may be asked for: a day.
_LONGEST = 86400.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes to its parser."""
    parser.add_argument(
        "patches", nargs="*", metavar="PATCH", help="ids or globs (default: all that apply here)"
    )
    parser.add_argument("--seed", metavar="N", help="of what contracts draw (default: a new one, printed)")
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="cpu: the stand-in, GPUs hidden (default); cuda: contracts that can run on a GPU, and no others",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=PATIENCE,
        metavar="SECONDS",
        help=f"for a run (default: {PATIENCE:g})",
    )
    parser.add_argument(
        "--write",
        metavar="FILE",
        help="try patches on a source that they were not tested on, and add what holds to a table, which "
        "OVERLAY_TRUST then names",
    )
    parser.add_argument(
        "--judged",
        action="store_true",
        help="with --write: you have read how the source differs, and a contract that holds is enough",
    )
    parser.set_defaults(command=run)


def run(engine: Engine, arguments: argparse.Namespace) -> int:
    """Prove, and print what came of it."""
    # What ends this process shall also end what it has started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not 0 < arguments.timeout <= _LONGEST:
        raise SelectionError(
            f"--timeout {arguments.timeout:g}: a run takes more than 0 and at most {_LONGEST:g} s"
        )
    if arguments.seed is not None and not (arguments.seed.isascii() and arguments.seed.isdecimal()):
        raise SelectionError(f"--seed {arguments.seed!r} is not a number: digits alone")
    options = prove.Options(
        seed=arguments.seed or str(secrets.randbelow(2**31)),
        seconds=arguments.timeout,
        device=arguments.device,
        beside=beside(),
    )
    return (_write if arguments.write else _prove)(engine, arguments, options)


def _prove(engine: Engine, arguments: argparse.Namespace, options: prove.Options) -> int:
    _, asked = _asked_for(engine, arguments.patches, ("apply", "conflict"))
    # Two patches that claim one site are each proven by itself.
    wanted = [
        (patch, one.replace(verdict="apply") if one.verdict == "conflict" else one) for patch, one in asked
    ]
    rows = prove.prove(wanted, options, arguments.progress)
    data = {**_how(options), "rows": [row.to_dict() for row in rows]}
    show(arguments, data, lambda: table.table(rows, options))
    return EXIT_LOUD if prove.fails(rows, arguments.patches) else EXIT_OK


def _write(engine: Engine, arguments: argparse.Namespace, options: prove.Options) -> int:
    path: str = arguments.write
    file = writing.File.read(path)
    _, wanted = _asked_for(engine, arguments.patches, ("unknown-source",))
    tries = writing.tries(wanted, InstalledTree(), engine.tested(), options, judged=arguments.judged)
    found = []
    for one in tries:
        found.append(one)
        if one.rows:  # now: the next contract may take long, and be interrupted
            file = file.plus(one.rows)
            file.write(path)
    data = {**_how(options), "file": path, "tries": [one.to_dict() for one in found]}
    show(arguments, data, lambda: table.tries(found, path, options))
    failed = any(one.failed for one in found) or (arguments.patches and any(one.why for one in found))
    return EXIT_LOUD if failed else EXIT_OK


def _asked_for(
    engine: Engine, named: list[str], verdicts: tuple[str, ...]
) -> tuple[Plan, list[tuple[Patch, Verdict]]]:
    """Return what is decided here, and the patches that are meant: those named, or else of some verdicts."""
    plan = engine.plan(named) if named else engine.plan_each()
    # Companions come along with whatever is selected, and were not asked for.
    known, chosen = engine.known(), {*plan.selection} - {*(plan.companions if named else ())}
    return plan, [
        (known[one.patch], one)
        for one in plan.verdicts
        if one.patch in chosen and (named or one.verdict in verdicts)
    ]


def _how(options: prove.Options) -> dict[str, object]:
    """Return how contracts are run, as data."""
    return {"seed": options.seed, "device": options.device, "environment": options.beside}


def beside() -> dict[str, str]:
    """Return the versions of what a lock records beside the patched projects. None of it is imported."""
    tree = InstalledTree()
    return {project.name: version_of(project, tree) for project in recorded_projects()}
