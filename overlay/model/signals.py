"""Threads of overlay take no signal of the process."""

from __future__ import annotations

from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def blocked() -> Iterator[None]:
    """Block all signals while a thread is started, so that it never has one.

    A job may block a signal in its own threads, and wait for it. In one that does not, it would end the job.
    """
    import signal

    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
