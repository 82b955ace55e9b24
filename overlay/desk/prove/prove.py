"""Runs the contracts of patches on what is installed here, and judges each by its two runs."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from datetime import datetime, timezone

from overlay.desk.lint import faults
from overlay.desk.prove.forked import CRASHED, HOLDS, RAISES, WRONG
from overlay.desk.prove.rows import File, Trial, too_weak, trial, unjudged
from overlay.desk.prove.runner import NOT_RUN, STRICTLY, WITH
from overlay.desk.suite.processes import end_all
from overlay.model import settings
from overlay.model.record import TYPE_CHECKING, Record
from overlay.model.settings import ALONE
from overlay.source.registry import contract_of, mutants
from overlay.source.table import Row  # noqa: TC001 -- a field type
from overlay.verdict import APPLY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from overlay.patch import Patch
    from overlay.source.source import Tree
    from overlay.source.table import Table
    from overlay.verdict import Verdict

#: What is said of a patch: upstream alone fails its contract, and the patch keeps it; upstream did not fail it;
#: the patch fails it; it was not run.
PROVEN, UNSHOWN, FAILS, _ = VERDICTS = ("proven", "not shown", "FAILS", NOT_RUN)
#: Seeds that a contract is run with before a row is written.
SEEDS = 3
#: The path is that of this process: what it decided on is what is run.
_CODE = "import sys; sys.path[:] = {!r}; from overlay.desk.prove.runner import main; main({!r}, {!r}, {!r})"
#: Hides GPUs. Not empty, as Ray counts them where a contract starts a cluster that says it has GPUs, and
#: gives its workers one of these each. ROCR_VISIBLE_DEVICES beside these is an error of verl's.
_HIDDEN = dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"), ",".join(["-1"] * 8))


class Outcome(Record):
    """What became of one run of a contract."""

    #: `holds`, `wrong`, `raises`, `no end`, `crashed` or `not run`.
    outcome: str
    #: What was said of that.
    why: str

    def __str__(self) -> str:
        return f"{self.outcome}: {self.why}" if self.why else self.outcome


class Proof(Record):
    """A patch whose contract was run, or was not."""

    patch: str
    revision: int
    #: Projects and versions, as `verl 0.8.0`.
    where: str
    #: `proven`, `not shown`, `FAILS` or `not run`.
    verdict: str
    #: Why it is not proven; of one that is, what upstream alone gets wrong.
    why: str
    #: What the contract found on upstream alone and with the patch, `None` of one that was not run at all.
    alone: Outcome | None = None
    patched: Outcome | None = None
    #: What is written of a source that the patch was not tested on.
    rows: tuple[Row, ...] = ()


class Options(Record):
    """How contracts are run."""

    seed: int
    #: For one run of a contract.
    seconds: float
    #: Versions of what a lock records beside the patched projects.
    beside: dict[str, str]
    #: The file of what is trusted, where it is not that of `OVERLAY_TRUST`.
    trust: str = ""

    def surroundings(self) -> str:
        """Return the versions as text."""
        return ", ".join(f"{name} {version or 'absent'}" for name, version in self.beside.items())


def prove(
    wanted: Sequence[tuple[Patch, Verdict]],
    options: Options,
    progress: Callable[[int, int, str], None] = lambda *_: None,
) -> list[Proof]:
    """Run the contracts of patches that apply, each on upstream alone and with the patch.

    Args:
        wanted: Patches, and what is decided on each. One that does not apply is not run, and that is said.
        options: How.
        progress: Is told how many runs are done, of how many, and which patch is next.

    Returns:
        A row for each, in the same order.

    """
    groups: dict[tuple[str, ...], list[str]] = {}
    found: dict[str, tuple[Outcome, Outcome]] = {}
    for patch, verdict in wanted:
        if verdict.verdict == APPLY:
            # What one contract imports first must not be there before another enables its patch.
            before = getattr(contract_of(patch.id), "before", ())
            groups.setdefault((patch.targets[0].project.name, *before), []).append(patch.id)
    total = sum(map(len, groups.values()))
    for ids in groups.values():
        jobs = [(name, how) for name in ids for how in (ALONE, STRICTLY if options.trust else WITH)]
        runs: list[Outcome] = []
        for outcome in _outcomes(jobs, options):
            runs.append(outcome)
            done = len(found) + len(runs) // 2
            progress(done, total, jobs[min(len(runs), len(jobs) - 1)][0])
        found.update(zip(ids, zip(runs[::2], runs[1::2], strict=True), strict=True))
    return [_proof(patch, verdict, found.get(patch.id)) for patch, verdict in wanted]


def _proof(
    patch: Patch, decided: Verdict, runs: tuple[Outcome, Outcome] | None = None, why: str = ""
) -> Proof:
    """Judge a patch by its two runs. Of one that was not run, say why, or else what was decided on it."""
    alone, patched = runs or (None, None)
    verdict = NOT_RUN
    if alone is not None and patched is not None:
        verdict, why = _judge(alone, patched)
    elif not why:
        why = f"{decided.verdict}: {decided.reason}".removesuffix(": ")
    return Proof(
        patch=patch.id, revision=patch.revision, where=decided.where(),
        verdict=verdict, why=why, alone=alone, patched=patched,
    )  # fmt: skip


def _judge(alone: Outcome, patched: Outcome) -> tuple[str, str]:
    if patched.outcome == NOT_RUN:
        return NOT_RUN, patched.why
    if patched.outcome != HOLDS:
        return FAILS, f"with the patch: {patched}"
    # As the patch holds in the same surroundings, it is upstream that raised.
    if alone.outcome in (WRONG, RAISES):
        return PROVEN, alone.why
    if alone.outcome != HOLDS:
        return UNSHOWN, f"upstream alone: {alone}"
    return UNSHOWN, "upstream alone keeps the contract: it does not show the defect here"


def fails(rows: Sequence[Proof], named: Sequence[str]) -> bool:
    """Return whether a contract fails, was not run although its patch was named, or none was run at all."""
    return all(row.verdict == NOT_RUN for row in rows) or any(
        row.verdict in (UNSHOWN, FAILS) or (row.verdict == NOT_RUN and row.patch in named) for row in rows
    )


def _outcomes(jobs: Sequence[tuple[str, str]], options: Options) -> Iterator[Outcome]:
    """Yield what became of contracts that one process runs, one after the other, each in a fork."""
    # Of overlay's own settings contracts keep where patches come from.
    given = os.environ.items()
    environ = {key: value for key, value in given if key == "OVERLAY_PACKS" or not key.startswith("OVERLAY")}
    environ |= {"OMP_NUM_THREADS": "1", "OVERLAY_LOG": "off", "TORCHDYNAMO_DISABLE": "1", **_HIDDEN}
    if path := options.trust or settings.trust():
        environ["OVERLAY_TRUST"] = os.path.abspath(path)
    # By this is found, and ended, whatever contracts leave behind: ranks that hang, for one.
    environ[settings.PROVE_RUN] = mark = secrets.token_hex(8)
    code = _CODE.format(sys.path, jobs, str(options.seed), options.seconds)
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", code], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=said, text=True, start_new_session=True, env=environ,
        )  # fmt: skip
        left = len(jobs)
        try:
            for line in process.stdout or ():
                outcome, why = json.loads(line)
                yield Outcome(outcome=outcome, why=why)
                left -= 1
            status = process.wait()
        finally:
            end_all(process, f"{settings.PROVE_RUN}={mark}")
        said.seek(0)
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        last = "".join(f": {line}" for line in said.read().strip().splitlines()[-1:])
        why = f"the process that runs contracts ended ({how}){last[:200]}"
        yield from [Outcome(outcome=CRASHED, why=why)] * left


def seeds(first: int) -> list[int]:
    """Return the seeds that follow from the first, with which a row is proven."""
    return [*range(first, first + SEEDS)]


def tries(
    wanted: Sequence[tuple[Patch, Verdict]], tree: Tree, table: Table, options: Options, *, judged: bool
) -> Iterator[Proof]:
    """Try patches that do not know their source here, and yield what came of each, and the rows for it.

    Args:
        wanted: Patches with what is decided on them, each after those that it requires.
        tree: What that was decided on.
        table: What they were tested on.
        options: How contracts are run; the first seed.
        judged: Whether somebody has read how the source differs.

    """
    for patch, verdict in wanted:
        name = " + ".join(f"{one.project} {one.version}" for one in verdict.targets if one.version)
        found = trial(patch, tree, table, f"{name}, here")
        why = found.refused or "; ".join(faults(patch))
        if not (why or found.absent or judged):
            new = unjudged(found.choices[0], patch, table)
            why = f"the patch replaces {new[0]}, and was not tested with this source of it" if new else ""
            why = why or too_weak(mutants(patch.id))
            why += "; read how the source differs, then add --judged" if why else ""
        if why:
            yield _proof(patch, verdict, why=why)
        elif rows := found.absent:
            yield _proof(patch, verdict, why=rows[0].reason).replace(rows=rows, verdict=rows[0].verdict)
        else:
            yield _tried(patch, verdict.replace(verdict=APPLY), found, options)


def _tried(patch: Patch, verdict: Verdict, given: Trial, options: Options) -> Proof:
    """Run the contract with each choice of variants, up to the first that holds with each seed."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trial.json")
        for rows in given.choices:
            File(rows=rows).write(path)
            found = set()
            for seed in seeds(options.seed):
                (last,) = prove([(patch, verdict)], options.replace(seed=seed, trust=path))
                found.add((last.verdict, last.alone and last.alone.outcome))
                if last.verdict not in (PROVEN, UNSHOWN):
                    break
            for means, made in (((UNSHOWN, HOLDS), given.alone), ((PROVEN, WRONG), rows)):
                if found == {means}:
                    new = _dated(made, options)
                    return last.replace(rows=new, verdict=new[0].verdict, why=new[0].proven)
            if last.verdict == NOT_RUN:
                break
    if last.verdict == PROVEN:
        return last.replace(why=f"upstream alone raises, which need not be the defect: {last.why}")
    return last


def _dated(rows: Iterable[Row], options: Options) -> tuple[Row, ...]:
    """Return rows that say when and how they came about."""
    today = datetime.now(tz=timezone.utc).date().isoformat()
    drawn = ", ".join(map(str, seeds(options.seed)))
    proven = f"proven on {today} with seeds {drawn} and {options.surroundings()}"
    return tuple(row.replace(date=today, proven=proven) for row in rows)
