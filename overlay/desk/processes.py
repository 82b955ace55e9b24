"""Runs commands side by side, and ends each of them with whatever it has started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


#: Seconds between asking processes to end and killing them.
GRACE = 3.0


class Commands:
    """Commands that run at the same time. If whoever waits for them is interrupted, they end too."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._stopped = threading.Event()
        # A shell that ends its background jobs sends SIGTERM, and has them ignore SIGINT.
        for sign in (signal.SIGTERM, signal.SIGINT):
            signal.signal(sign, signal.default_int_handler)

    def each(self, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Yield the results of `work`, which calls `run`, in the order of the items."""
        self._stopped.clear()
        with ThreadPoolExecutor(self._at_once) as pool:
            try:
                yield from pool.map(work, items)
            except BaseException:
                self._stopped.set()
                raise

    def run(
        self, words: Sequence[str], environ: Mapping[str, str], output: IO[bytes], seconds: float, folder: str
    ) -> int | None:
        """Run a command in a folder, and return its exit status, `None` if it ran out of time.

        The first variable of the environment must be this command's own: it marks what the command starts.
        Raises `InterruptedError` in a thread whose results nobody waits for any more.
        """
        process = subprocess.Popen(
            words, cwd=folder, env=environ, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
        until = time.monotonic() + seconds
        while process.poll() is None and time.monotonic() < until:
            if self._stopped.wait(0.05):
                break
        status = process.poll()
        _end_all(process, "=".join(next(iter(environ.items()))))
        if self._stopped.is_set():
            raise InterruptedError
        return status


def _end_all(process: subprocess.Popen[Any], mark: str) -> None:
    """End a command's process group, and all processes with its mark: ask first, then kill."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:  # else the number of its group may be another's by now
            _signal(-process.pid, sign)
        for pid in _marked(mark):
            _signal(pid, sign)
        until = time.monotonic() + GRACE
        while time.monotonic() < until and (process.poll() is None or _marked(mark)):
            time.sleep(0.05)


def _marked(mark: str) -> list[int]:
    """Return the processes that have a mark in their environment. Without `/proc` there is none."""
    found = []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        # A process may have ended meanwhile, or be somebody else's.
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{int(name)}/environ", "rb") as file:
            if mark.encode() in file.read().split(b"\0"):
                found.append(int(name))
    return found


def _signal(pid: int, sign: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, sign)
