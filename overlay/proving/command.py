"""`overlay prove`: the contracts of patches, run on what is installed here."""

from __future__ import annotations

import os
import secrets
import signal

from overlay.base import settings
from overlay.catalogue.registry import recorded_projects
from overlay.commands.output import EXIT_LOUD, EXIT_OK, show
from overlay.deciding.decide import version_of
from overlay.errors import SelectionError, TrustError
from overlay.pinning import trustfile
from overlay.proving import prove, table, trusting
from overlay.reading.source import InstalledTree

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from overlay.enabling.engine import Engine
    from overlay.patch import Patch
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
        "--trust",
        action="store_true",
        help="try patches whose digests alone are unknown here, and write those that hold to OVERLAY_TRUST",
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
    return (_trust if arguments.trust else _prove)(engine, arguments, options)


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


def _trust(engine: Engine, arguments: argparse.Namespace, options: prove.Options) -> int:
    path = settings.trust()
    if not path:
        raise SelectionError(
            "--trust writes to the file that OVERLAY_TRUST names: set OVERLAY_TRUST to a file beside the lock"
        )
    before = []
    if os.path.exists(path):
        before = trustfile.read(path)
    else:
        del os.environ["OVERLAY_TRUST"]  # it is about to be written
    plan, wanted = _asked_for(engine, arguments.patches, ("unsupported",))
    trials = trusting.trust(wanted, InstalledTree(), options, before, arguments.progress)
    proofs = {one.patch: one.proof for one in trials if one.proof is not None}
    if proofs:
        try:
            trustfile.write(path, ({one.patch: one for one in before} | proofs).values())
        except OSError as error:
            raise TrustError(f"OVERLAY_TRUST={path!r} cannot be written: {error}") from error
    data = {
        **_how(options),
        "seeds": trusting.seeds(options.seed),
        "file": path,
        "written": sorted(proofs),
        "trials": [{**one.to_dict(), "why": one.why} for one in trials],
    }
    show(arguments, data, lambda: table.trials(trials, path, options))
    applies = {verdict.patch for verdict in plan.verdicts if verdict.verdict == "apply"}
    refused = arguments.patches and any(one.patch not in proofs.keys() | applies for one in trials)
    return EXIT_LOUD if refused or trusting.failed(trials) else EXIT_OK


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
