"""Runs something in a fork, which may raise, crash or never end, and says what came of it."""

from __future__ import annotations

import contextlib
import os
import signal
from multiprocessing import get_context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

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
    context = get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    child = context.Process(target=_be_the_child, args=(work, writer, seconds))
    child.start()
    assert child.pid is not None  # noqa: S101 -- for the type checker
    writer.close()
    found = None
    try:
        # An answer is waited for, and not the end of the pipe: what the child has started may hold that.
        if not reader.poll(seconds):
            return NO_END, f"not within {seconds:g} s"
        with contextlib.suppress(EOFError):
            found = reader.recv()
        child.join(_GRACE)
    finally:
        reader.close()
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            child.kill()
        child.join()
    return found or (CRASHED, _how(child.exitcode or 0))


def _be_the_child(work: Callable[[], str], writer: Connection, seconds: float) -> None:
    """Answer, and end without what else this interpreter would do at its end."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.setpgid(0, 0)  # so that what it starts is ended with it
    # Should the parent be gone by then.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds + 2 * _GRACE)
    try:
        writer.send(_tried(work))
    except BaseException:  # noqa: BLE001 -- `SystemExit` for one: the parent sees that nothing was said
        os._exit(1)
    os._exit(0)


def _tried(work: Callable[[], str]) -> tuple[str, str]:
    """Return the outcome of some work in this process, and what was said."""
    try:
        wrong = work()
    except Exception as error:  # noqa: BLE001 -- what it is does not matter: it is said
        return RAISES, f"{type(error).__name__}: {error}"[:LONGEST]
    return (WRONG, wrong[:LONGEST]) if wrong else (HOLDS, "")


def _how(status: int) -> str:
    """Say how a process ended that should have answered: its exit status, or minus the signal's number."""
    if status >= 0:
        return f"its process ended with status {status}, without an answer"
    try:
        return f"its process was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"its process was ended by signal {-status}"
