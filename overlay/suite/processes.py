"""Runs commands under a time limit, and ends whatever they have started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time

from overlay.base.record import TYPE_CHECKING, Record

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Seconds between asking processes to end and killing them.
GRACE = 3.0


class Command(Record):
    """A command, and what it needs."""

    words: list[str]
    #: Where it runs.
    folder: str
    environ: dict[str, str]
    #: `NAME=VALUE` in that environment and no other: by it is found what has left the process group.
    mark: str
    #: Seconds.
    limit: float
    #: The file for its output.
    log: str


class Ended(Record):
    """How a command ended."""

    #: Exit status, `None` if it was killed because its time was over.
    status: int | None
    seconds: float


class Commands:
    """Commands of this run, each with its own process group."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[subprocess.Popen[bytes], str] = {}
        self._stopped = False

    def run(self, command: Command) -> Ended:
        """Run a command until it ends or its time is over, and then end whatever it has started."""
        began = time.monotonic()
        with open(command.log, "ab") as output, self._lock:
            if self._stopped:
                return Ended(status=None, seconds=0.0)
            process = subprocess.Popen(
                command.words,
                cwd=command.folder,
                env=command.environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._running[process] = command.mark
        status: int | None
        try:
            status = process.wait(command.limit)
        except subprocess.TimeoutExpired:
            status = None
        seconds = time.monotonic() - began
        end_all(process, command.mark)
        with self._lock:
            del self._running[process]
        return Ended(status=status, seconds=seconds)

    def stop(self) -> None:
        """End all commands, and start no more."""
        with self._lock:
            self._stopped = True
            running = dict(self._running)
        for process, mark in running.items():
            end_all(process, mark)


def end_all(process: subprocess.Popen[bytes], mark: str) -> None:
    """End a command's process group, and all processes with its mark: ask first, then kill."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:  # else the number of its group may be another's by now
            _signal(-process.pid, sign)
        for pid in marked(mark):
            _signal(pid, sign)
        until = time.monotonic() + GRACE
        while time.monotonic() < until and (process.poll() is None or marked(mark)):
            time.sleep(0.05)


def marked(mark: str) -> list[int]:
    """Return the processes that have a mark in their environment. Without `/proc` there is none."""
    wanted = mark.encode()
    return [pid for pid in _pids() if wanted in _environ(pid)]


def _pids() -> Iterable[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def _environ(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:  # it has ended, or is somebody else's
        return []


def _signal(pid: int, sign: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, sign)
