"""Starts the processes in which contracts are run, and collects what became of each."""

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

from overlay.desk.prove.forked import CRASHED, NO_END
from overlay.desk.prove.runner import READY
from overlay.desk.suite.processes import end_all
from overlay.model import settings
from overlay.model.record import TYPE_CHECKING, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
