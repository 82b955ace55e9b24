"""Starts programs on a warm server where there is one, and as processes of their own where there is none.

`WARM_SERVER` in the environment names the socket of the server (`tests/shared/warm_server.py`). The tests
start one, which saves seconds on each of the many programs that they run. A contract that you run by hand
does without.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

VARIABLE = "WARM_SERVER"
#: Bytes of the length of what is sent: arguments, folder and environment.
LENGTH = 4
#: Until a server has imported what it imports, on a slow machine.
SECONDS = 300.0


class Program:
    """A program that runs, the first of a session of its own."""

    def __init__(
        self,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        out: IO[bytes],
        err: IO[bytes],
        *,
        own: bool = False,
        folder: Path | None = None,
    ) -> None:
        """Start `python -W ignore ARGUMENTS` with an environment, and with streams for what it says.

        With `own` it is a process of its own in any case. It runs in `folder`, or in that of this one.
        """
        self.pid = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._status: int | None = None
        if (path := environ.get(VARIABLE)) and not own:
            self._connection = socket.socket(socket.AF_UNIX)
            _connect(self._connection, path)
            asked = {"arguments": [*arguments], "folder": str(folder or Path.cwd()), "environ": {**environ}}
            text = json.dumps(asked).encode()
            streams = [out.fileno(), err.fileno()]
            socket.send_fds(self._connection, [len(text).to_bytes(LENGTH, "big")], streams)
            self._connection.sendall(text)
            self.pid = int(self._line(None))
        else:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", *arguments],
                env=dict(environ), stdout=out, stderr=err, start_new_session=True, cwd=folder,
            )  # fmt: skip
            self.pid = self._process.pid

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status. Raises `subprocess.TimeoutExpired` after `timeout` seconds."""
        if self._process is not None:
            return self._process.wait(timeout)
        if self._status is None:
            try:
                self._status = int(self._line(timeout))
            except TimeoutError:
                raise subprocess.TimeoutExpired("a program on the warm server", timeout or 0) from None
        return self._status

    def has_ended(self, timeout: float) -> bool:
        """Return whether it ends within `timeout` seconds, or has ended before."""
        try:
            self.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def end(self) -> None:
        """Kill all that is left of its session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()
        if self._connection is not None:
            self._connection.close()

    def _line(self, timeout: float | None) -> str:
        connection = self._connection
        if connection is None:
            raise RuntimeError("this is a process of its own")
        connection.settimeout(timeout)
        text = b""
        while not text.endswith(b"\n"):
            if not (more := connection.recv(1)):
                raise RuntimeError("the warm server has ended")
            text += more
        return text.decode()


def _connect(connection: socket.socket, path: str) -> None:
    """Connect, once the server is there: it has to import first. Its folder goes when it has ended."""
    end = time.monotonic() + SECONDS
    while not Path(path).exists() and Path(path).parent.exists() and time.monotonic() < end:
        time.sleep(0.05)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        raise
