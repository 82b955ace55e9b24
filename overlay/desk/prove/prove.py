"""Runs the contracts of patches on what is installed here, and judges each by its two runs."""

from __future__ import annotations

import json
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time

from overlay.desk.prove.forked import CRASHED, HOLDS, NO_END, RAISES, WRONG
from overlay.desk.prove.runner import NOT_RUN, READY, STRICTLY, WITH
from overlay.desk.suite.processes import end_all
from overlay.model import settings
from overlay.model.record import TYPE_CHECKING, Record
from overlay.model.settings import ALONE
from overlay.source.registry import contract_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from overlay.patch import Contract, Patch
    from overlay.verdict import Verdict

#: What is said of a patch: upstream alone fails its contract, and the patch keeps it; both keep it, as the
#: contract says of itself; both keep it, and upstream should not; the patch does not; it was not run.
PROVEN, HARMLESS, UNSHOWN, FAILS = "proven", "harmless", "not shown", "FAILS"
#: These are failures.
FAILING = (UNSHOWN, FAILS)
#: Seconds beyond those of a run until the process that starts it is given up.
_GRACE = 20.0
#: The path is that of this process: what it decided on is what is run.
_CODE = (
    "import sys; sys.path[:] = {path!r}; from overlay.desk.prove.runner import main; "
    "main({seed!r}, {limit!r})"
)
#: Variables by which programs find GPUs.
_GPUS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
#: As many as there may be, and none of them there is. Not empty: Ray counts them where a contract starts a
#: cluster that says it has GPUs, and gives its workers one of these each.
_HIDDEN = ",".join(["-1"] * 8)


class Outcome(Record):
    """What became of one run of a contract."""

    #: `holds`, `wrong`, `raises`, `no end`, `crashed` or `not run`.
    outcome: str
    #: What was said of that.
    why: str
    seconds: float


class Proof(Record):
    """A patch whose contract was run, or was not."""

    patch: str
    revision: int
    #: Projects and versions, as `verl 0.8.0`.
    where: str
    #: `proven`, `harmless`, `not shown`, `FAILS` or `not run`.
    verdict: str
    #: Why it is not proven; of one that is, what upstream alone gets wrong.
    why: str
    #: What the contract found on upstream alone and with the patch, `None` of one that was not run at all.
    alone: Outcome | None = None
    patched: Outcome | None = None


class Options(Record):
    """How contracts are run."""

    seed: str
    #: For one run of a contract.
    seconds: float
    #: `cpu` or `cuda`.
    device: str
    #: Versions of what a lock records beside the patched projects.
    beside: dict[str, str]
    #: The file of what is trusted, where it is not that of `OVERLAY_TRUST`.
    trust: str = ""


def prove(
    wanted: Sequence[tuple[Patch, Verdict]],
    options: Options,
    progress: Callable[[int, int, str], None] | None = None,
) -> list[Proof]:
    """Run the contracts of patches that apply, each on upstream alone and with the patch.

    Args:
        wanted: Patches, and what is decided on each. One that does not apply is not run, and that is said.
        options: How.
        progress: Is told how many runs are done, of how many, and which patch is next.

    Returns:
        A row for each, in the same order.

    """
    rows: dict[str, Proof] = {}
    groups: dict[tuple[str, ...], list[tuple[Patch, Verdict]]] = {}
    for patch, verdict in wanted:
        contract = contract_of(patch.id) if verdict.verdict == "apply" else None
        why = _not_run(verdict, contract, options.device)
        if why or contract is None:
            rows[patch.id] = _row(patch, verdict, verdict=NOT_RUN, why=why)
        else:
            # What one contract imports first must not be there before another enables its patch.
            project = patch.targets[0].project.name
            groups.setdefault((project, *contract.before), []).append((patch, verdict))
    total, done = 2 * sum(map(len, groups.values())), 0
    for group in groups.values():
        jobs = [(patch.id, how) for patch, _ in group for how in (ALONE, STRICTLY if options.trust else WITH)]

        def tell(name: str) -> None:
            nonlocal done
            if progress is not None:
                progress(done, total, name)
            done += 1

        environ = environment(options.device, options.trust)
        found = outcomes(jobs, options.seed, seconds=options.seconds, environ=environ, tell=tell)
        for (patch, verdict), alone, patched in zip(group, found[::2], found[1::2], strict=True):
            said, why = judge(alone, patched, contract_of(patch.id))
            rows[patch.id] = _row(patch, verdict, verdict=said, why=why, alone=alone, patched=patched)
    return [rows[patch.id] for patch, _ in wanted]


def judge(alone: Outcome, patched: Outcome, contract: Contract | None) -> tuple[str, str]:
    """Return what is said of a patch, and why, by what its contract found on upstream alone and with it."""
    if patched.outcome == NOT_RUN:
        return NOT_RUN, patched.why
    if patched.outcome != HOLDS:
        return FAILS, f"with the patch: {_said(patched)}"
    # As the patch holds in the same surroundings, it is upstream that raised.
    if alone.outcome in (WRONG, RAISES):
        return PROVEN, alone.why
    if alone.outcome != HOLDS:
        return UNSHOWN, f"upstream alone: {_said(alone)}"
    if contract is not None and contract.harmless:
        return HARMLESS, f"upstream alone keeps it too: {contract.harmless}"
    return UNSHOWN, "upstream alone keeps the contract: it does not show the defect here"


def fails(rows: Sequence[Proof], named: Sequence[str]) -> bool:
    """Return whether a contract fails, was not run although its patch was named, or none was run at all."""
    ran = [row for row in rows if row.verdict != NOT_RUN]
    return (
        not ran
        or any(row.verdict in FAILING for row in rows)
        or any(row.verdict == NOT_RUN and row.patch in named for row in rows)
    )


def _said(outcome: Outcome) -> str:
    return f"{outcome.outcome}: {outcome.why}" if outcome.why else outcome.outcome


def _not_run(verdict: Verdict, contract: Contract | None, device: str) -> str:
    """Return why a contract is not run, empty if it is."""
    if verdict.verdict != "apply":
        return f"{verdict.verdict}: {verdict.reason}" if verdict.reason else verdict.verdict
    if contract is None:
        return "it has no contract"
    if device not in contract.devices:
        return f"its contract runs on {', '.join(contract.devices)} alone"
    return ""


def _row(patch: Patch, decided: Verdict, **fields: object) -> Proof:
    return Proof(patch=patch.id, revision=patch.revision, where=decided.where(), **fields)  # type: ignore[arg-type]


def environment(device: str, trust: str) -> dict[str, str]:
    """Return the environment in which contracts are run.

    Args:
        device: `cpu`, or the GPUs that there are.
        trust: The file of what is trusted; empty for that of this process, if it has one.

    """
    # Of overlay's own settings contracts keep where patches come from.
    given = os.environ.items()
    found = {key: value for key, value in given if key == "OVERLAY_PACKS" or not key.startswith("OVERLAY")}
    found.update(OMP_NUM_THREADS="1", OVERLAY_LOG="off", TORCHDYNAMO_DISABLE="1")
    if path := trust or settings.trust():
        found["OVERLAY_TRUST"] = os.path.abspath(path)
    if device == "cpu":
        found.update(dict.fromkeys(_GPUS, _HIDDEN))
    return found


def outcomes(
    jobs: Sequence[tuple[str, str]],
    seed: str,
    *,
    seconds: float,
    environ: dict[str, str],
    tell: Callable[[str], None] = lambda _: None,
) -> list[Outcome]:
    """Return what became of contracts that one process runs, one after the other, each in a fork.

    Args:
        jobs: A patch, and `alone`, `with` or `strictly`.
        seed: Of what the contracts draw.
        seconds: For each run, and for what all import first.
        environ: As `environment` makes it.
        tell: Is told which patch is next.

    """
    code = _CODE.format(path=sys.path, seed=seed, limit=str(seconds))
    # By this is found, and ended, whatever contracts leave behind: ranks that hang, for one.
    mark = secrets.token_hex(8)
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as said:
        given.write("".join(json.dumps(job) + "\n" for job in jobs).encode())
        given.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", code],
            # Not buffered, so that what is ready to be read is what has not been read.
            stdin=given, stdout=subprocess.PIPE, stderr=said, bufsize=0, start_new_session=True,
            env={**environ, settings.PROVE_RUN: mark},
        )  # fmt: skip
        try:
            return _answers(process, jobs, seconds, tell, said.fileno())
        finally:
            if process.stdout is not None:
                process.stdout.close()
            end_all(process, f"{settings.PROVE_RUN}={mark}")
            process.wait()


def _answers(
    process: subprocess.Popen[bytes],
    jobs: Sequence[tuple[str, str]],
    seconds: float,
    tell: Callable[[str], None],
    said: int,
) -> list[Outcome]:
    found: list[Outcome] = []
    tell(jobs[0][0])
    began = time.monotonic()
    while len(found) < len(jobs):
        line = _line(process, seconds + _GRACE)
        if not line:
            what = "it" if found else "what it imports first"
            last = (
                Outcome(outcome=NO_END, why=f"no end of {what} within {seconds:g} s", seconds=seconds)
                if line is None
                else Outcome(outcome=CRASHED, why=_last_words(process, said), seconds=0.0)
            )
            return [*found, last, *[last.replace(seconds=0.0)] * (len(jobs) - len(found) - 1)]
        outcome, why = json.loads(line)
        if outcome != READY:
            found.append(Outcome(outcome=outcome, why=why, seconds=time.monotonic() - began))
            if len(found) < len(jobs):
                tell(jobs[len(found)][0])
        began = time.monotonic()
    return found


def _line(process: subprocess.Popen[bytes], seconds: float) -> bytes | None:
    """Return what a process prints next, empty if it has ended, `None` if it prints nothing in time.

    A line is shorter than what a pipe takes at once, so it comes whole.
    """
    assert process.stdout is not None  # noqa: S101 -- for the type checker
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    return process.stdout.readline() if ready else None


def _last_words(process: subprocess.Popen[bytes], said: int) -> str:
    """Return how a process ended before its time."""
    try:
        status: int | str = process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        status = "none"
    size = os.fstat(said).st_size
    text = os.pread(said, 4096, max(size - 4096, 0)).decode(errors="replace").strip().splitlines()
    how = (
        f"by {signal.Signals(-status).name}" if isinstance(status, int) and status < 0 else f"status {status}"
    )
    last = f": {text[-1][:200]}" if text else ""
    return f"the process that runs contracts ended ({how}){last}"
