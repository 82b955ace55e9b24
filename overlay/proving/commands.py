"""`overlay prove`: the contracts of patches, run on what is installed here."""

from __future__ import annotations

import secrets
import signal
from importlib.metadata import PackageNotFoundError, version

from overlay.commands.output import EXIT_LOUD, EXIT_OK, show
from overlay.proving import prove, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from overlay.enabling.engine import Engine

#: Seconds for one run of a contract, on a machine that is busy.
PATIENCE = 240.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes to its parser."""
    parser.add_argument("patches", nargs="*", metavar="PATCH", help="ids or globs (default: all that apply here)")
    parser.add_argument("--seed", metavar="N", help="of what contracts draw (default: a new one, printed)")
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="cpu: the stand-in, GPUs hidden (default); cuda: contracts that can run on a GPU, and no others",
    )
    parser.add_argument(
        "--timeout", type=float, default=PATIENCE, metavar="SECONDS", help=f"for a run (default: {PATIENCE:g})"
    )
    parser.set_defaults(command=run)


def run(engine: Engine, arguments: argparse.Namespace) -> int:
    """Prove, and print what came of it."""
    # What ends this process shall also end what it has started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    named = arguments.patches
    plan = engine.plan(named or engine.everything())
    known, chosen = engine.known(), {*plan.selection} - {*(plan.companions if named else ())}
    wanted = [
        (known[verdict.patch], verdict)
        for verdict in plan.verdicts
        if verdict.patch in chosen and (named or verdict.verdict == "apply")
    ]
    options = prove.Options(
        seed=arguments.seed or str(secrets.randbelow(2**31)), seconds=arguments.timeout, device=arguments.device
    )
    rows = prove.prove(wanted, options, arguments.progress)
    data = {"seed": options.seed, "device": options.device, "torch": torch(), "rows": [row.to_dict() for row in rows]}
    show(arguments, data, lambda: table.table(rows, options, torch()))
    return EXIT_LOUD if prove.fails(rows, named) else EXIT_OK


def torch() -> str:
    """Return the version of torch here, empty if there is none. It is not imported."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""
