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

#: Nothing is wrong; something is; an exception; no end within its time; the process ended without a word.
HOLDS, WRONG, RAISES, NO_END, CRASHED = OUTCOMES = ("holds", "wrong", "raises", "no end", "crashed")
#: Characters that are kept of what was said.
_LONGEST = 300
#: Seconds after its time in which a child ends by itself if its parent is gone.
_GRACE = 10


def forked(work: Callable[[], str], seconds: float) -> tuple[str, str]:
    """Return the outcome of some work in a fork, and what was said.

    Whatever is left of its process group is killed. This process must have no threads that hold a lock.

    Args:
        work: Returns what is wrong, empty if nothing is.
        seconds: Until it is killed.

    """
    context = get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    child = context.Process(target=_be_the_child, args=(work, writer, seconds))
    child.start()
    writer.close()
    found = None
    try:
        # Not the end of the pipe, which what the child has started may hold open.
        if not reader.poll(seconds):
            return NO_END, f"not within {seconds:g} s"
        with contextlib.suppress(EOFError):
            found = reader.recv()
        child.join(_GRACE)
    finally:
        reader.close()
        with contextlib.suppress(OSError, TypeError):
            os.killpg(child.pid, signal.SIGKILL)  # type: ignore[arg-type]
        child.kill()  # which may not have come to make its group
        child.join()
    status = child.exitcode or 0
    how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}, without an answer"
    return found or (CRASHED, f"its process ended {how}")


def _be_the_child(work: Callable[[], str], writer: Connection, seconds: float) -> None:
    """Answer, and end without what else this interpreter would do at its end."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.setpgid(0, 0)  # what it starts is killed with it
    signal.alarm(int(seconds) + 2 * _GRACE)
    try:
        wrong = work()
        writer.send((WRONG, wrong[:_LONGEST]) if wrong else (HOLDS, ""))
    except Exception as error:  # noqa: BLE001 -- it is said
        writer.send((RAISES, f"{type(error).__name__}: {error}"[:_LONGEST]))
    except BaseException:  # noqa: BLE001 -- `SystemExit` for one: nothing was said
        os._exit(1)
    os._exit(0)
