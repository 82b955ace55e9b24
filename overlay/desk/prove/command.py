"""`overlay prove`: the contracts of patches, run on what is installed here."""

from __future__ import annotations

import secrets
import signal
import textwrap

from overlay.desk.output import EXIT_LOUD, EXIT_OK, show
from overlay.desk.prove import prove, writing
from overlay.desk.prove.runner import NOT_RUN
from overlay.errors import SelectionError
from overlay.source.decide import version_of
from overlay.source.registry import environment
from overlay.source.source import InstalledTree

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from overlay.patch import Patch
    from overlay.runtime.engine import Engine
    from overlay.verdict import Plan, Verdict

#: Seconds for one run of a contract, on a machine that is busy.
PATIENCE = 240.0
#: Seconds that may be asked for: a day.
_LONGEST = 86400.0

WIDTH = 110
#: What an outcome is called in the table, as in that of `scripts/demo`.
_WORDS = {"holds": "right", "wrong": "wrong"}
_HEAD = ("patch", "on", "alone", "patched", "verdict")


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
    show(arguments, data, lambda: table_of(rows, options))
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
    show(arguments, data, lambda: table_of_tries(found, path, options))
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
    return {project.name: version_of(project, tree) for project in environment().RECORDED}


def table_of(rows: Sequence[prove.Proof], options: prove.Options) -> str:
    """Return the table of what was proven, and below it the counts and how to have the same once more."""
    cells = [
        (f"{row.patch}@{row.revision}", row.where, _word(row.alone), _word(row.patched), row.verdict)
        for row in rows
    ]
    counts = {
        word: sum(row.verdict == word for row in rows)
        for word in (prove.PROVEN, prove.HARMLESS, prove.UNSHOWN, prove.FAILS, NOT_RUN)
    }
    told = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    foot = f"{told or 'no patch applies here'}; {_where(options)}, seed {options.seed}"
    return "\n".join([*_aligned(_HEAD, cells, [row.why for row in rows]), "", foot])


def table_of_tries(items: Sequence[writing.Try], path: str, options: prove.Options) -> str:
    """Return the table of what was tried, and below it what was written."""
    cells = [(item.patch, ", ".join(row.means for row in item.rows) or "not written") for item in items]
    why = [item.why or (item.rows[0].proven or item.rows[0].reason) for item in items]
    count = sum(bool(item.rows) for item in items)
    foot = f"{count} of {len(items)} written to {path}" if count else f"nothing is written to {path}"
    foot += f"; {_where(options)}, seeds {', '.join(writing.seeds(options.seed))}"
    if count:
        foot += f"; OVERLAY_TRUST={path} goes by it"
    if not items:
        return f"each patch knows its source here; {foot}"
    return "\n".join([*_aligned(("patch", "verdict"), cells, why), "", foot])


def _where(options: prove.Options) -> str:
    where = "the CPU, any GPU hidden" if options.device == "cpu" else "the GPU"
    beside = ", ".join(f"{name} {version or 'absent'}" for name, version in options.beside.items())
    return f"on {where}, {beside}"


def _aligned(head: Sequence[str], cells: Sequence[Sequence[str]], below: Sequence[str]) -> list[str]:
    """Return rows in columns, each with a text below it."""
    widths = [max(len(row[column]) for row in (head, *cells)) for column in range(len(head))]
    lines = []
    for row, text in zip((head, *cells), ("", *below), strict=True):
        lines.append("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
        indent = " " * 4
        lines += textwrap.wrap(
            text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
        )
    return lines


def _word(outcome: prove.Outcome | None) -> str:
    return "-" if outcome is None else _WORDS.get(outcome.outcome, outcome.outcome)
