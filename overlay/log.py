"""The log: exact lines on the logger `overlay`.

A job has many processes, and nobody reads a line that each of them writes. So what one rank does goes to
`debug`, with its rank and host. Warnings come from every rank: before the ranks have met, none knows whether
another has the same. A process logs each warning once. Only its last word differs between ranks, so that Ray
folds the lines into one.

Unless the application has given that logger a handler of its own, lines go to standard error as they are,
so that grep finds them whatever the application does to the root logger.
"""

from __future__ import annotations

import sys
from contextlib import suppress

from overlay.model.rank import is_first, rank_and_host

_level = "info"
#: Warnings of this session.
_warned: set[str] = set()
#: Whether this process has logged the job's one line on what is in place, as `JobLog` sets it: what comes
#: later is news.
summed_up = False


def set_level(level: str) -> None:
    """Begin a session with a level: one of `settings.LOG_LEVELS`."""
    global _level, summed_up
    _level, summed_up = level, False
    _warned.clear()


def heard(level: str) -> bool:
    """Return whether lines of a level are written."""
    return _ORDER[level] >= _ORDER[_level]


def debug(message: str) -> None:
    """Log what only matters to somebody who looks for a fault."""
    _write("debug", _with_place(message))


def info(message: str) -> None:
    """Log what was done, as the one process of the job that does it."""
    _write("info", message)


def own(message: str) -> None:
    """Log what each rank does for itself: at `debug`, or as news if rank 0 does it after its one line."""
    (info if summed_up and is_first() else debug)(message)


def of_job(message: str) -> None:
    """Log what holds on all ranks: at `info` on rank 0 or in a process that is no rank, else at `debug`."""
    (info if is_first() else debug)(message)


def warning(message: str) -> None:
    """Log that something which was asked for did not happen, once in a session."""
    if message in _warned:
        return
    _warned.add(message)
    _write("warning", _with_place(message))


_ORDER = {"debug": 10, "info": 20, "warning": 30, "error": 40, "off": 100}


def _with_place(message: str) -> str:
    return f"{message} {rank_and_host()}".rstrip()


def _write(level: str, message: str) -> None:
    if not heard(level):
        return
    # Imported here: a process that has nothing to say does not pay for `logging`.
    import logging

    logger = logging.getLogger("overlay")
    if not logger.handlers:

        class StandardError(logging.StreamHandler):  # type: ignore[type-arg]
            """Writes to whatever `sys.stderr` is at the time, as redirections and captures expect."""

            stream = property(lambda _: sys.stderr, lambda *_: None)

            def handleError(self, _: logging.LogRecord) -> None:  # noqa: N802 -- logging's name
                """Ignore a stream that is closed: no import may fail because of a line in a log."""

        logger.addHandler(StandardError())
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
    logger.disabled = False  # `logging.config` disables every logger that it was not told of
    # Not by `log`, which says nothing where an application has called `logging.disable`. The record gets all
    # that `logging` gives one: a logger of the application's own may ask for it.
    if _ORDER[level] < logger.getEffectiveLevel():
        return
    about = ("overlay", _ORDER[level], __file__, 0, "overlay: %s", (message,))
    try:
        logger.handle(logger.makeRecord(*about, None, "overlay", None, None))
    except Exception as error:  # noqa: BLE001 -- what makes records, or handles them, may need what isn't there yet
        with suppress(Exception):
            sys.stderr.write(f"overlay: {message} (the application's logging failed: {error!r})\n")
