"""Ends a process, and whatever it has started."""

from __future__ import annotations

import contextlib
import os
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from typing import Any

#: Seconds between asking processes to end and killing them.
GRACE = 3.0


def end_all(process: subprocess.Popen[Any], mark: str) -> None:
    """End a command's process group, and all processes with its mark: ask first, then kill.

    Args:
        process: The leader of its process group.
        mark: `NAME=VALUE` in its environment and in no other command's: it finds what has left the group.

    """
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
