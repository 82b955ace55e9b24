"""`overlay prove`: runs the contracts of patches on what is installed, and judges each by its two runs."""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import signal
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from importlib import import_module
from importlib.util import find_spec

from overlay.desk.output import EXIT_LOUD, EXIT_OK, say, show
from overlay.desk.processes import Commands
from overlay.desk.prove.rows import File, Trial, trial, unjudged
from overlay.model import settings
from overlay.model.record import Record
from overlay.model.settings import ALONE
from overlay.model.text import table, wrap
from overlay.runtime.engine import Engine, load_all
from overlay.source.decide import version_of
from overlay.source.registry import contract_of, environment
from overlay.source.source import Tree
from overlay.source.table import Row
from overlay.verdict import APPLY, Verdict

#: What became of one run of a contract, one of `RUN_OUTCOMES`, and what was said of it.
Outcome = tuple[str, str]


#: Nothing is wrong; something is; an exception; no end in time; the process ended without an answer; a
#: package that it needs is not installed, which is never a pass.
HOLDS, WRONG, RAISES, NO_END, CRASHED, NOT_RUN = RUN_OUTCOMES = (
    "holds", "wrong", "raises", "no end", "crashed", "not run",
)  # fmt: skip
#: Asks for `Contract.strictly`, which a row of a table needs.
STRICTLY = "strictly"
#: The most characters that are kept of a reason.
LONGEST = 300
#: What is said of a patch that was run: upstream alone fails the contract, and it holds with the patch;
#: upstream alone does not fail it; it fails with the patch.
PROVEN, UNSHOWN, FAILS = "proven", "not shown", "FAILS"
#: Seeds that a contract is run with before a row is written.
SEEDS = 3
#: Seconds for one run of a contract, on a machine that is busy.
_PATIENCE = 240
#: Contracts that run at once: two, or more where each has four cores. Some start ranks, or a Ray cluster.
_AT_ONCE = max(2, min(8, (os.cpu_count() or 1) // 4))
#: With this process's path: what it decided on is what runs.
_CODE = "import sys; sys.path[:] = {!r}; from overlay.desk.prove.prove import main; main(*{!r})"
#: Hides GPUs. Not empty: if a contract starts a Ray cluster that claims GPUs, Ray counts these, and gives one
#: to each worker. (verl raises an error if ROCR_VISIBLE_DEVICES is set beside these.)
_HIDDEN = dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"), ",".join(["-1"] * 8))


class Proof(Record):
    """A patch whose contract was run, or was not."""

    patch: str
    #: Projects and versions, as `verl 0.8.0`.
    where: str
    #: `proven`, `not shown`, `FAILS` or `not run`; where rows are written, what they say.
    verdict: str
    #: Why it is not proven; of one that is, what upstream alone gets wrong.
    why: str
    #: What became of the contract on upstream alone and with the patch, as in `RUN_OUTCOMES`; empty if not.
    alone: str = ""
    patched: str = ""
    #: The rows that are written for a source that the patch was not tested on.
    rows: tuple[Row, ...] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes to its parser."""
    parser.set_defaults(command=run)
    what = "ids or globs (default: all that apply here)"
    parser.add_argument("patches", nargs="*", metavar="PATCH", help=what)
    what = "the seed of the contracts' inputs (default: a new one, printed)"
    parser.add_argument("--seed", type=int, metavar="N", help=what)
    what = f"the time limit of each run (default: {_PATIENCE})"
    parser.add_argument("--timeout", type=seconds, default=_PATIENCE, metavar="SECONDS", help=what)
    what = (
        "try patches on a source that they were not tested on, and add what holds to a table, which "
        "OVERLAY_TRUST then names"
    )
    parser.add_argument("--write", metavar="FILE", help=what)
    what = "with --write: you have read how the source differs, and a contract that holds is enough"
    parser.add_argument("--judged", action="store_true", help=what)


def seconds(text: str) -> int:
    """Read an argument that limits a time."""
    if int(text) <= 0:
        raise ValueError
    return int(text)


def run(engine: Engine, arguments: argparse.Namespace) -> int:
    """Prove, and print what came of it."""
    path = arguments.write or ""
    file = File.read(path) if path else File()
    prover = Prover(engine, arguments)
    wanted = _asked_for(engine, arguments.patches, ("unknown-source",) if path else (APPLY, "conflict"))
    found: list[Proof] = []
    for one in map(prover.tried, wanted) if path else prover.proven(wanted):
        found.append(one)
        say(f"[{len(found)}/{len(wanted)}] {one.patch}: {one.verdict}")
        if one.rows:  # now: the next contract may take long, and be interrupted
            file = file.plus(one.rows)
            file.write(path)

    data = {
        "seed": prover.seeds[0],
        "environment": prover.beside,
        "file": path,
        "rows": [one.to_dict() for one in found],
    }
    head = ("patch", "on", "alone", "patched", "verdict", "why")
    cells = [
        (one.patch, one.where, one.alone or "-", one.patched or "-", one.verdict, one.why) for one in found
    ]
    counts = Counter(one.verdict for one in found)
    told = [f"{count} {word}" for word, count in sorted(counts.items())] or ["no patch to be tried here"]
    foot = f"{', '.join(told)}; {prover.surroundings}, seed {prover.seeds[0]}"
    if path:
        count = sum(bool(one.rows) for one in found)
        done = f"{count} of {len(found)} written to {path}: OVERLAY_TRUST={path} goes by it"
        foot += f"; {done if count else 'nothing was written'}"
    show(arguments, data, lambda: "\n".join([table(head, cells), "", wrap(foot)]))
    if path:
        lost = any(arguments.patches or one.alone for one in found if not one.rows)
        return EXIT_LOUD if lost or not count else EXIT_OK
    unrun = [one for one in found if one.verdict == NOT_RUN]
    wrong = len(unrun) == len(found) or any(one.verdict in (UNSHOWN, FAILS) for one in found)
    return EXIT_LOUD if wrong or any(one.patch in arguments.patches for one in unrun) else EXIT_OK


def _asked_for(engine: Engine, named: list[str], verdicts: tuple[str, ...]) -> list[Verdict]:
    """Return the verdicts here on the patches that are meant: those named, or else those of some verdicts."""
    plan = engine.plan(named) if named else engine.plan_each()
    # Companions come along with whatever is selected, and were not asked for.
    chosen = {*plan.selection} - {*(plan.companions if named else ())}
    return [one for one in plan.verdicts if one.patch in chosen and (named or one.verdict in verdicts)]


class Prover:
    """Runs contracts with the options of the command."""

    def __init__(self, engine: Engine, options: argparse.Namespace) -> None:
        first = secrets.randbelow(2**31) if options.seed is None else options.seed
        self.seeds = [*range(first, first + SEEDS)]
        self._seconds, self._judged = options.timeout, options.judged
        self._known, self._tree, self._table = engine.known(), Tree(), engine.tested()
        #: What a lock records beside the patched projects. None of it is imported.
        self.beside = {one.name: version_of(one, self._tree) for one in environment().RECORDED}
        self.surroundings = ", ".join(f"{name} {text or 'absent'}" for name, text in self.beside.items())
        self._commands = Commands(_AT_ONCE)

    def proven(self, wanted: Iterable[Verdict]) -> Iterator[Proof]:
        """Run contracts on upstream alone and with the patch, and yield what came of each.

        A patch that does not apply is not run, and the proof says so. Two patches that conflict are each
        proven alone.
        """
        given = [(one, one.verdict in (APPLY, "conflict")) for one in wanted]
        runs = self._runs([(one.patch, self.seeds[0]) for one, applies in given if applies])
        for one, applies in given:
            yield _judged(one, *next(runs)) if applies else _not_run(one)

    def tried(self, verdict: Verdict) -> Proof:
        """Try a patch whose source here is unknown, and return what came of it, with the rows to write."""
        patch = self._known[verdict.patch]
        name = " + ".join(f"{one.project} {one.version}" for one in verdict.targets if one.version)
        given = trial(patch, self._tree, self._table, f"{name}, here")
        why = given.refused
        if not (why or given.absent or self._judged):
            changed = unjudged(given.choices[0], patch, self._table)
            why = "a contract does not notice every change"
            if changed:
                why = f"this source of {changed[0]}, which the patch replaces, is new"
            why += "; read how the source differs, then add --judged"
        if why:
            return _not_run(verdict, why)
        if rows := given.absent:
            return _not_run(verdict, rows[0].reason).replace(rows=rows, verdict=rows[0].verdict)
        return self._first_that_holds(verdict, given)

    def _first_that_holds(self, verdict: Verdict, given: Trial) -> Proof:
        """Run the contract with each choice of variants, up to the first that holds with each seed."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trial.json")
            for rows in given.choices:
                File(rows=rows).write(path)
                found = set()
                for runs in self._runs([(verdict.patch, seed) for seed in self.seeds], path):
                    last = _judged(verdict, *runs)
                    found.add((last.verdict, last.alone))
                    if last.verdict not in (PROVEN, UNSHOWN):
                        break
                # A row needs one of these: upstream alone keeps the contract, or fails it as the defect does.
                made = {(UNSHOWN, HOLDS): given.alone, (PROVEN, WRONG): rows}.get((last.verdict, last.alone))
                if made and len(found) == 1:
                    new = self._dated(made)
                    return last.replace(rows=new, verdict=new[0].verdict, why=new[0].proven)
                if last.verdict == NOT_RUN:
                    break
        if last.verdict == PROVEN:
            return last.replace(why=f"without the patch it raises, which need not be the defect: {last.why}")
        return last

    def _dated(self, rows: Iterable[Row]) -> tuple[Row, ...]:
        """Return rows that say when and how they came about."""
        today = datetime.now(tz=timezone.utc).date().isoformat()
        how = f"seeds {', '.join(map(str, self.seeds))} and {self.surroundings}"
        return tuple(row.replace(date=today, proven=f"proven on {today} with {how}") for row in rows)

    def _runs(self, wanted: list[tuple[str, int]], trust: str = "") -> Iterator[tuple[Outcome, Outcome]]:
        """Yield the outcomes of each patch and seed: on upstream alone, and with the patch.

        With `trust`, a file, the contract is run strictly, as a row of a table needs it.
        """
        jobs = [(*one, how) for one in wanted for how in (ALONE, STRICTLY if trust else "")]
        outcomes = self._commands.each(lambda job: self._run(*job, trust or settings.trust()), jobs)
        return zip(outcomes, outcomes, strict=True)

    def _run(self, patch: str, seed: int, how: str, trust: str) -> Outcome:
        """Run one contract in a process of its own, and end all that it has started."""
        # Of overlay's settings, a contract keeps only the packs. The first variable marks the run.
        given = os.environ.items()
        kept = {key: text for key, text in given if key == "OVERLAY_PACKS" or not key.startswith("OVERLAY")}
        kept.pop("PYTHONOPTIMIZE", None)  # without its assertions, upstream answers otherwise
        environ = {settings.PROVE_RUN: secrets.token_hex(8), **kept}
        environ |= {"OMP_NUM_THREADS": "1", "OVERLAY_LOG": "off", "TORCHDYNAMO_DISABLE": "1", **_HIDDEN}
        environ |= {settings.PROVE: ALONE} if how == ALONE else {}
        environ |= {"OVERLAY_TRUST": os.path.abspath(trust)} if trust else {}
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as output:
            answer = os.path.join(folder, "answer.json")
            code = _CODE.format(sys.path, (patch, how, str(seed), answer))
            words = [sys.executable, "-W", "ignore", "-c", code]
            status = self._commands.run(words, environ, output, self._seconds, os.getcwd())
            if status is None:
                return NO_END, f"not within {self._seconds:g} s"
            if os.path.exists(answer):
                with open(answer, encoding="utf-8") as file:
                    outcome, why = json.load(file)
                return outcome, why
            output.seek(0)
            last = "".join(output.read().decode(errors="replace").strip().splitlines()[-1:])
        ended = (
            f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}, without an answer"
        )
        return CRASHED, f"its process ended {ended}{': ' * bool(last)}{last[:200]}"


def _not_run(decided: Verdict, why: str = "") -> Proof:
    """Return the proof of a patch that was not run: `why`, or else the verdict on it."""
    why = why or f"{decided.verdict}: {decided.reason}".removesuffix(": ")
    return Proof(patch=decided.patch, where=decided.where(), verdict=NOT_RUN, why=why)


def _judged(decided: Verdict, alone: Outcome, patched: Outcome) -> Proof:
    """Judge a patch by its two runs."""
    if patched[0] == NOT_RUN:
        verdict, why = patched
    elif patched[0] != HOLDS:
        verdict, why = FAILS, f"with the patch: {': '.join(filter(None, patched))}"
    # The contract holds with the patch in the same surroundings, so it is upstream that raises.
    elif alone[0] in (WRONG, RAISES):
        verdict, why = PROVEN, alone[1]
    elif alone[0] != HOLDS:
        verdict, why = UNSHOWN, f"without the patch: {': '.join(filter(None, alone))}"
    else:
        verdict, why = UNSHOWN, "without the patch the contract holds too: it does not show the defect here"
    found = _not_run(decided.replace(verdict=APPLY), why)
    return found.replace(verdict=verdict, alone=alone[0], patched=patched[0])


def main(patch: str, how: str, seed: str, answer: str) -> None:
    """Run one contract in this process, write `[outcome, what was said]` as JSON into a file, and end it."""
    warnings.simplefilter("ignore")
    try:
        load_all()
        found = _run_here(patch, how, seed)
    except Exception as error:  # noqa: BLE001 -- it is said
        said = f"{type(error).__name__}: {error}"[:LONGEST]
        missing = re.search(r"No module named '([^']+)'", said)
        found = RAISES, said
        if missing and ("." in missing[1] or find_spec(missing[1]) is None):
            found = NOT_RUN, f"{missing[1]} is not installed"
    with open(answer, "w", encoding="utf-8") as file:
        json.dump(found, file)
    os._exit(0)  # nothing else runs at the end of this interpreter


def _run_here(patch: str, how: str, seed: str) -> tuple[str, str]:
    contract = contract_of(patch)
    if contract is None:
        return NOT_RUN, "it has no contract"
    for name in contract.before:
        import_module(name)
    wrong = contract.strictly(seed) if how == STRICTLY else contract.check(seed)
    return (WRONG, wrong[:LONGEST]) if wrong else (HOLDS, "")
