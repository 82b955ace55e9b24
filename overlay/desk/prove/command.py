"""`overlay prove`: the contracts of patches, run on what is installed here."""

from __future__ import annotations

import secrets
from collections import Counter

from overlay.desk.output import EXIT_LOUD, EXIT_OK, say, show
from overlay.desk.prove.contract import NOT_RUN
from overlay.desk.prove.prove import FAILS, UNSHOWN, Prover
from overlay.desk.prove.rows import File
from overlay.model.text import table, wrap
from overlay.source.decide import version_of
from overlay.source.registry import environment
from overlay.source.source import InstalledTree
from overlay.verdict import APPLY

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from overlay.desk.prove.prove import Proof
    from overlay.patch import Patch
    from overlay.runtime.engine import Engine
    from overlay.verdict import Verdict

#: Seconds for one run of a contract, on a machine that is busy.
_PATIENCE = 240


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes to its parser."""
    what = "ids or globs (default: all that apply here)"
    parser.add_argument("patches", nargs="*", metavar="PATCH", help=what)
    what = "the seed of the contracts' inputs (default: a new one, printed)"
    parser.add_argument("--seed", type=int, metavar="N", help=what)
    what = f"the time limit of each run (default: {_PATIENCE})"
    parser.add_argument("--timeout", type=int, default=_PATIENCE, metavar="SECONDS", help=what)
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
    seed = secrets.randbelow(2**31) if arguments.seed is None else arguments.seed
    # What a lock records beside the patched projects. None of it is imported.
    tree = InstalledTree()
    beside = {project.name: version_of(project, tree) for project in environment().RECORDED}
    surroundings = ", ".join(f"{name} {version or 'absent'}" for name, version in beside.items())
    prover, path = Prover(seed, arguments.timeout), arguments.write or ""
    file = File.read(path) if path else File()
    wanted = _asked_for(engine, arguments.patches, ("unknown-source",) if path else (APPLY, "conflict"))
    if path:
        proofs = prover.tries(wanted, tree, engine.tested(), surroundings, judged=arguments.judged)
    else:
        # Two patches that claim one site are each proven by itself.
        proofs = prover.prove(
            (one, said.replace(verdict=APPLY) if said.verdict == "conflict" else said) for one, said in wanted
        )
    found: list[Proof] = []
    for one in proofs:
        found.append(one)
        say(f"[{len(found)}/{len(wanted)}] {one.patch}: {one.verdict}")
        if one.rows:  # now: the next contract may take long, and be interrupted
            file = file.plus(one.rows)
            file.write(path)

    rows = [one.to_dict() for one in found]
    cells = [
        (one.patch, one.where, one.alone or "-", one.patched or "-", one.verdict, one.why) for one in found
    ]
    counts = Counter(one.verdict for one in found)
    told = [f"{count} {word}" for word, count in sorted(counts.items())] or ["no patch to be tried here"]
    foot = f"{', '.join(told)}; {surroundings}, seed {seed}"
    if path:
        count = sum(bool(one.rows) for one in found)
        foot += f"; {count} of {len(found)} written to {path}"
        foot += f": OVERLAY_TRUST={path} goes by it" if count else ""
    head = ("patch", "on", "alone", "patched", "verdict", "why")
    data = {"seed": seed, "environment": beside, "file": path, "rows": rows}
    show(arguments, data, lambda: "\n".join([table(head, cells), "", wrap(foot)]))
    if path:
        return EXIT_LOUD if any(arguments.patches or one.alone for one in found if not one.rows) else EXIT_OK
    unrun = [one for one in found if one.verdict == NOT_RUN]
    wrong = len(unrun) == len(found) or any(one.verdict in (UNSHOWN, FAILS) for one in found)
    return EXIT_LOUD if wrong or any(one.patch in arguments.patches for one in unrun) else EXIT_OK


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
