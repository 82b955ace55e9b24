"""Something that is tried in a fork, which may raise, crash or never end: its outcome in words."""

from __future__ import annotations

import json
import os
import select
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: What became of it: nothing is wrong; it was said what is; an exception; no end within its time; the process
#: ended without a word.
HOLDS, WRONG, RAISES, NO_END, CRASHED = "holds", "wrong", "raises", "no end", "crashed"
#: Characters that are kept of what was said.
LONGEST = 300
#: Seconds for a process that has answered to end.
_GRACE = 5.0


def forked(work: Callable[[], str], seconds: float) -> tuple[str, str]:
    """Return the outcome of some work in a fork, and what was said.

    Whatever is left of its process group is killed. This process must have no threads that hold a lock.

    Args:
        work: Returns what is wrong, empty if nothing is. What it prints goes where this process prints.
        seconds: Until it is killed.

    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _be_the_child(work, reader, writer, seconds)
    os.close(writer)
    try:
        said, ended = _answer(reader, seconds)
        status = _wait(child, _GRACE) if ended else None
    finally:
        os.close(reader)
        left = _kill_group(child)
    if said:
        outcome, why = json.loads(said)
        return outcome, why
    if not ended:
        return NO_END, f"not within {seconds:g} s"
    return CRASHED, _how(left if status is None else status)


def tried(work: Callable[[], str]) -> tuple[str, str]:
    """Return the outcome of some work in this process, and what was said."""
    try:
        wrong = work()
    except Exception as error:  # noqa: BLE001 -- what it is does not matter: it is said
        return RAISES, f"{type(error).__name__}: {error}"[:LONGEST]
    return (WRONG, wrong[:LONGEST]) if wrong else (HOLDS, "")


def _be_the_child(work: Callable[[], str], reader: int, writer: int, seconds: float) -> None:
    """Answer, and end without what else this interpreter would do at its end."""
    try:
        os.close(reader)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setpgid(0, 0)  # so that what it starts is ended with it
        # Should the parent be gone by then.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds + 2 * _GRACE)
        data = memoryview((json.dumps(tried(work)) + "\n").encode())
        while data:
            data = data[os.write(writer, data) :]
    except BaseException:  # noqa: BLE001 -- `SystemExit` for one: the parent sees that nothing was said
        os._exit(1)
    os._exit(0)


def _answer(reader: int, seconds: float) -> tuple[bytes, bool]:
    """Return the line that the child wrote, and whether that is all or its time is over.

    The line's end is waited for, and not the end of the pipe: what the child has started may hold that.
    """
    until, said = time.monotonic() + seconds, b""
    while not said.endswith(b"\n"):
        ready, _, _ = select.select([reader], [], [], max(until - time.monotonic(), 0.0))
        if not ready:
            return b"", False
        part = os.read(reader, 1 << 16)
        if not part:
            return b"", True
        said += part
    return said, True


def _wait(child: int, seconds: float) -> int | None:
    """Return the status of a child that has ended within some seconds, else nothing."""
    until = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return status
        if time.monotonic() > until:
            return None
        time.sleep(0.01)


def _kill_group(child: int) -> int:
    """Kill what is left of a child's group, and return the child's status if it was not asked for yet."""
    for kill, number in ((os.killpg, child), (os.kill, child)):
        try:
            kill(number, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
        break
    try:
        return os.waitpid(child, 0)[1]
    except ChildProcessError:
        return 0


def _how(status: int) -> str:
    """Say how a process ended that should have answered."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"its process ended with status {code}, without an answer"
    try:
        return f"its process was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"its process was ended by signal {-code}"
