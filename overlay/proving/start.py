"""Starts processes in which contracts are run, and brings back what became of each."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time

from overlay.base import settings
from overlay.base.record import TYPE_CHECKING, Record
from overlay.proving.forked import CRASHED, NO_END
from overlay.suite.processes import end_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

#: Seconds beyond those of a run until the process that starts it is given up.
_GRACE = 20.0
#: The path is that of this process: what it decided on is what is run.
_CODE = (
    "import sys; sys.path[:] = {path!r}; from overlay.proving.runner import main; main({seed!r}, {limit!r})"
)
#: Of the settings of this process, what contracts keep: where patches come from, and which are trusted.
_KEPT = ("OVERLAY_PACKS", "OVERLAY_TRUST")
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


def environment(device: str, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment in which contracts are run on a device: `cpu`, or the GPUs that there are."""
    given = os.environ if environ is None else environ
    found = {key: value for key, value in given.items() if not key.startswith("OVERLAY") or key in _KEPT}
    found.update(OMP_NUM_THREADS="1", OVERLAY_LOG="off", TORCHDYNAMO_DISABLE="1")
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
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", code],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, start_new_session=True,
            env={**environ, settings.PROVE_RUN: mark},
        )  # fmt: skip
        try:
            _give(process, "".join(json.dumps(job) + "\n" for job in jobs))
            return _answers(process, jobs, seconds, tell, said.fileno())
        finally:
            if process.stdout is not None:
                process.stdout.close()
            end_all(process, f"{settings.PROVE_RUN}={mark}")
            process.wait()


def _give(process: subprocess.Popen[bytes], text: str) -> None:
    """Hand a process its jobs. That it has ended is seen when it should answer."""
    assert process.stdin is not None  # noqa: S101 -- for the type checker
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(text.encode())
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()


def _answers(
    process: subprocess.Popen[bytes],
    jobs: Sequence[tuple[str, str]],
    seconds: float,
    tell: Callable[[str], None],
    said: int,
) -> list[Outcome]:
    assert process.stdout is not None  # noqa: S101 -- for the type checker
    lines = _lines(process.stdout.fileno(), seconds + _GRACE)
    found: list[Outcome] = []
    tell(jobs[0][0])
    began = time.monotonic()
    for line in lines:
        if line is None:
            what = "what it imports first" if len(found) == 0 else "it"
            found.append(
                Outcome(outcome=NO_END, why=f"no end of {what} within {seconds:g} s", seconds=seconds)
            )
            break
        answer = json.loads(line)
        if answer[0] != "ready":
            found.append(Outcome(outcome=answer[0], why=answer[1], seconds=time.monotonic() - began))
            if len(found) == len(jobs):
                return found
            tell(jobs[len(found)][0])
        began = time.monotonic()
    else:
        found.append(Outcome(outcome=CRASHED, why=_last_words(process, said), seconds=0.0))
    left = found[-1].replace(seconds=0.0)
    return [*found, *(left for _ in jobs[len(found) :])]


def _lines(reader: int, seconds: float) -> Iterator[bytes | None]:
    """Yield lines as they come, and `None` instead of one that does not come in time."""
    data = b""
    while True:
        line, end, rest = data.partition(b"\n")
        if end:
            data = rest
            yield line
            continue
        ready, _, _ = select.select([reader], [], [], seconds)
        if not ready:
            yield None
            return
        part = os.read(reader, 1 << 16)
        if not part:
            return
        data += part


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


def contract_settings(trust: str, environ: dict[str, str]) -> dict[str, str]:
    """Return an environment in which the contracts trust what a file says, or nothing."""
    found = {key: value for key, value in environ.items() if key != "OVERLAY_TRUST"}
    path = trust or settings.trust(environ)
    return {**found, "OVERLAY_TRUST": os.path.abspath(path)} if path else found
