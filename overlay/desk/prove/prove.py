"""Runs the contracts of patches on what is installed here, and judges each by its two runs."""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
import tempfile
from datetime import datetime, timezone

from overlay.desk.lint import faults
from overlay.desk.processes import Commands
from overlay.desk.prove.contract import CRASHED, HOLDS, NO_END, NOT_RUN, RAISES, STRICTLY, WRONG
from overlay.desk.prove.rows import File, Trial, trial, unjudged
from overlay.model import settings
from overlay.model.record import TYPE_CHECKING, Record
from overlay.model.settings import ALONE
from overlay.source.table import Row  # noqa: TC001 -- a field type
from overlay.verdict import APPLY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from overlay.patch import Patch
    from overlay.source.source import Tree
    from overlay.source.table import Table
    from overlay.verdict import Verdict

    #: What became of one run of a contract, one of `RUN_OUTCOMES`, and what was said of it.
    Outcome = tuple[str, str]

#: What is said of a patch: upstream alone fails its contract, and the patch keeps it; upstream did not fail
#: it; the patch fails it; it was not run.
PROVEN, UNSHOWN, FAILS, _ = PROOF_VERDICTS = ("proven", "not shown", "FAILS", NOT_RUN)
#: Seeds that a contract is run with before a row is written.
SEEDS = 3
#: Contracts that run at once: two, or more where each has four cores. Some start ranks, or a Ray cluster.
_AT_ONCE = max(2, min(8, (os.cpu_count() or 1) // 4))
#: The path is that of this process: what it decided on is what is run.
_CODE = "import sys; sys.path[:] = {!r}; from overlay.desk.prove.contract import main; main(*{!r})"
_PACKS = "OVERLAY_PACKS"
#: Hides GPUs. Not empty, as Ray counts them where a contract starts a cluster that says it has GPUs, and
#: gives its workers one of these each. ROCR_VISIBLE_DEVICES beside these is an error of verl's.
_HIDDEN = dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"), ",".join(["-1"] * 8))


class Proof(Record):
    """A patch whose contract was run, or was not."""

    patch: str
    #: Projects and versions, as `verl 0.8.0`.
    where: str
    #: `proven`, `not shown`, `FAILS` or `not run`.
    verdict: str
    #: Why it is not proven; of one that is, what upstream alone gets wrong.
    why: str
    #: What became of the contract on upstream alone and with the patch, as in `RUN_OUTCOMES`; empty if not.
    alone: str = ""
    patched: str = ""
    #: What is written of a source that the patch was not tested on.
    rows: tuple[Row, ...] = ()


def seeds(first: int) -> list[int]:
    """Return the seeds that follow from the first, with which a row is proven."""
    return [*range(first, first + SEEDS)]


class Prover:
    """Runs contracts with a seed, each for so many seconds at most."""

    def __init__(self, seed: int, seconds: float) -> None:
        self._seed, self._seconds = seed, seconds
        self._commands = Commands(_AT_ONCE)

    def prove(self, wanted: Iterable[tuple[Patch, Verdict]]) -> Iterator[Proof]:
        """Run contracts on upstream alone and with the patch, and yield what came of each.

        A patch that does not apply is not run, and that is said.
        """
        given = [*wanted]
        runs = self._runs([(one.id, self._seed) for one, said in given if said.verdict == APPLY])
        for patch, verdict in given:
            applies = verdict.verdict == APPLY
            yield _judged(patch, verdict, *next(runs)) if applies else _not_run(patch, verdict)

    def tries(
        self, wanted: Iterable[tuple[Patch, Verdict]], tree: Tree, table: Table, how: str, *, judged: bool
    ) -> Iterator[Proof]:
        """Try patches that do not know their source here, and yield what came of each, and the rows for it.

        Args:
            wanted: Patches with what is decided on them, each after those that it requires.
            tree: What that was decided on.
            table: What they were tested on.
            how: What the rows say of how they came about, beside their day and their seeds.
            judged: Whether somebody has read how the source differs.

        """
        for patch, verdict in wanted:
            name = " + ".join(f"{one.project} {one.version}" for one in verdict.targets if one.version)
            found = trial(patch, tree, table, f"{name}, here")
            why = found.refused or "; ".join(faults(patch))
            if not (why or found.absent or judged):
                changed = unjudged(found.choices[0], patch, table)
                why = f"this source of {changed[0]}, which the patch replaces, is new" if changed else ""
                why = why or "a contract does not notice every change"
                why += "; read how the source differs, then add --judged"
            if why:
                yield _not_run(patch, verdict, why)
            elif rows := found.absent:
                yield _not_run(patch, verdict, rows[0].reason).replace(rows=rows, verdict=rows[0].verdict)
            else:
                yield self._tried(patch, verdict, found, how)

    def _tried(self, patch: Patch, verdict: Verdict, given: Trial, how: str) -> Proof:
        """Run the contract with each choice of variants, up to the first that holds with each seed."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trial.json")
            for rows in given.choices:
                File(rows=rows).write(path)
                found = set()
                for runs in self._runs([(patch.id, seed) for seed in seeds(self._seed)], path):
                    last = _judged(patch, verdict, *runs)
                    found.add((last.verdict, runs[0][0]))
                    if last.verdict not in (PROVEN, UNSHOWN):
                        break
                for means, made in (((UNSHOWN, HOLDS), given.alone), ((PROVEN, WRONG), rows)):
                    if found == {means}:
                        new = _dated(made, f"seeds {', '.join(map(str, seeds(self._seed)))} and {how}")
                        return last.replace(rows=new, verdict=new[0].verdict, why=new[0].proven)
                if last.verdict == NOT_RUN:
                    break
        if last.verdict == PROVEN:
            return last.replace(why=f"without the patch it raises, which need not be the defect: {last.why}")
        return last

    def _runs(self, wanted: list[tuple[str, int]], trust: str = "") -> Iterator[tuple[Outcome, Outcome]]:
        """Yield the outcomes on upstream alone and with the patch, of patches with seeds.

        With a file that is trusted, the contract is asked as a row of a table needs it.
        """
        jobs = [(*one, how) for one in wanted for how in (ALONE, STRICTLY if trust else "")]
        outcomes = self._commands.each(lambda job: self._run(*job, trust or settings.trust()), jobs)
        return zip(outcomes, outcomes, strict=True)

    def _run(self, patch: str, seed: int, how: str, trust: str) -> Outcome:
        """Run one contract in a process of its own, and end all that it has started."""
        # Of overlay's own settings contracts keep where patches come from. The first one marks the run.
        environ = {settings.PROVE_RUN: secrets.token_hex(8)}
        given = os.environ.items()
        environ |= {key: text for key, text in given if key == _PACKS or not key.startswith("OVERLAY")}
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
        how = (
            f"with status {status}, without an answer"
            if status >= 0
            else f"by {signal.Signals(-status).name}"
        )
        return CRASHED, f"its process ended {how}{': ' * bool(last)}{last[:200]}"


def _not_run(patch: Patch, decided: Verdict, why: str = "") -> Proof:
    """Return what is said of a patch that was not run: why, or else what was decided on it."""
    why = why or f"{decided.verdict}: {decided.reason}".removesuffix(": ")
    return Proof(patch=patch.id, where=decided.where(), verdict=NOT_RUN, why=why)


def _judged(patch: Patch, decided: Verdict, alone: Outcome, patched: Outcome) -> Proof:
    """Judge a patch by its two runs."""
    if patched[0] == NOT_RUN:
        verdict, why = patched
    elif patched[0] != HOLDS:
        verdict, why = FAILS, f"with the patch: {_text(patched)}"
    # As the patch holds in the same surroundings, it is upstream that raised.
    elif alone[0] in (WRONG, RAISES):
        verdict, why = PROVEN, alone[1]
    elif alone[0] != HOLDS:
        verdict, why = UNSHOWN, f"without the patch: {_text(alone)}"
    else:
        verdict, why = UNSHOWN, "without the patch the contract holds too: it does not show the defect here"
    found = _not_run(patch, decided.replace(verdict=APPLY), why)
    return found.replace(verdict=verdict, alone=alone[0], patched=patched[0])


def _text(outcome: Outcome) -> str:
    return ": ".join(filter(None, outcome))


def _dated(rows: Iterable[Row], how: str) -> tuple[Row, ...]:
    """Return rows that say when and how they came about."""
    today = datetime.now(tz=timezone.utc).date().isoformat()
    return tuple(row.replace(date=today, proven=f"proven on {today} with {how}") for row in rows)
