"""`overlay prove`: the contracts of patches, run on what is installed here."""

from __future__ import annotations

import secrets
import signal
from collections import Counter

from overlay.desk.output import EXIT_LOUD, EXIT_OK, show
from overlay.desk.prove import prove
from overlay.desk.prove.rows import File
from overlay.model.text import table, wrap
from overlay.source.decide import version_of
from overlay.source.registry import environment
from overlay.source.source import InstalledTree
from overlay.verdict import APPLY

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from overlay.patch import Patch
    from overlay.runtime.engine import Engine
    from overlay.verdict import Verdict

#: Seconds for one run of a contract, on a machine that is busy.
PATIENCE = 240
#: What an outcome is called in the table, as in that of `scripts/demo`.
_WORDS = {"holds": "right"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes to its parser."""
    what = "ids or globs (default: all that apply here)"
    parser.add_argument("patches", nargs="*", metavar="PATCH", help=what)
    what = "the seed of the contracts' inputs (default: a new one, printed)"
    parser.add_argument("--seed", type=int, metavar="N", help=what)
    what = f"the time limit of each run (default: {PATIENCE})"
    parser.add_argument("--timeout", type=int, default=PATIENCE, metavar="SECONDS", help=what)
    what = (
        "try patches on a source that they were not tested on, and add what holds to a table, which "
        "OVERLAY_TRUST then names"
    )
    parser.add_argument("--write", metavar="FILE", help=what)
    what = "with --write: you have read how the source differs, and a contract that holds is enough"
    parser.add_argument("--judged", action="store_true", help=what)
    parser.set_defaults(command=run)


def run(engine: Engine, arguments: argparse.Namespace) -> int:
    """Prove, and print what came of it."""
    # What ends this process shall also end what it has started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    seed = secrets.randbelow(2**31) if arguments.seed is None else arguments.seed
    # What a lock records beside the patched projects. None of it is imported.
    beside = {project.name: version_of(project, InstalledTree()) for project in environment().RECORDED}
    options = prove.Options(seed=seed, seconds=arguments.timeout, beside=beside)
    return (_write if arguments.write else _prove)(engine, arguments, options)


def _prove(engine: Engine, arguments: argparse.Namespace, options: prove.Options) -> int:
    asked = _asked_for(engine, arguments.patches, (APPLY, "conflict"))
    # Two patches that claim one site are each proven by itself.
    wanted = [
        (one, said.replace(verdict=APPLY) if said.verdict == "conflict" else said) for one, said in asked
    ]
    found = prove.prove(wanted, options, arguments.progress)
    _show(arguments, options, found)
    return EXIT_LOUD if prove.fails(found, arguments.patches) else EXIT_OK


def _write(engine: Engine, arguments: argparse.Namespace, options: prove.Options) -> int:
    file = File.read(arguments.write)
    wanted = _asked_for(engine, arguments.patches, ("unknown-source",))
    found = []
    for one in prove.tries(wanted, InstalledTree(), engine.tested(), options, judged=arguments.judged):
        found.append(one)
        if one.rows:  # now: the next contract may take long, and be interrupted
            file = file.plus(one.rows)
            file.write(arguments.write)
    _show(arguments, options, found)
    left = [one for one in found if not one.rows]
    return EXIT_LOUD if any(arguments.patches or one.alone for one in left) else EXIT_OK


def _show(arguments: argparse.Namespace, options: prove.Options, found: Sequence[prove.Proof]) -> None:
    """Print what was proven, the counts, what was written, and how to have the same once more."""
    data = {
        "seed": options.seed,
        "environment": options.beside,
        "file": arguments.write or "",
        "rows": [one.to_dict() for one in found],
    }
    cells = [
        (f"{one.patch}@{one.revision}", one.where, _word(one.alone), _word(one.patched), one.verdict, one.why)
        for one in found
    ]
    counts = Counter(one.verdict for one in found)
    told = [f"{count} {word}" for word, count in sorted(counts.items())] or ["no patch to be tried here"]
    foot = f"{', '.join(told)}; {options.surroundings()}, seed {options.seed}"
    if arguments.write:
        count = sum(bool(one.rows) for one in found)
        foot += f"; {count} of {len(found)} written to {arguments.write}"
        foot += f": OVERLAY_TRUST={arguments.write} goes by it" if count else ""
    head = ("patch", "on", "alone", "patched", "verdict", "why")
    show(arguments, data, lambda: "\n".join([table(head, cells), "", wrap(foot)]))


def _word(outcome: prove.Outcome | None) -> str:
    return "-" if outcome is None else _WORDS.get(outcome.outcome, outcome.outcome)


def _asked_for(engine: Engine, named: list[str], verdicts: tuple[str, ...]) -> list[tuple[Patch, Verdict]]:
    """Return the patches that are meant, those named or else of some verdicts, and what is decided here."""
    plan = engine.plan(named) if named else engine.plan_each()
    # Companions come along with whatever is selected, and were not asked for.
    chosen = {*plan.selection} - {*(plan.companions if named else ())}
    return [
        (engine.known()[one.patch], one)
        for one in plan.verdicts
        if one.patch in chosen and (named or one.verdict in verdicts)
    ]
