"""A progress bar on the terminal, for commands that take long."""

from __future__ import annotations

import time
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

#: Seconds after which a command takes long.
PATIENCE = 2.0
_BAR = 20
#: A line that fills the terminal makes some go on to the next one.
_WIDTH = 79


class Progress:
    """A bar on a terminal, there from `PATIENCE` seconds on, and gone without a trace at the end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._start = time.monotonic()
        self._drawn = False

    def __call__(self, done: int, total: int, name: str) -> None:
        """Say that `done` of `total` things are done, and which one is next."""
        seconds = time.monotonic() - self._start
        if seconds >= PATIENCE and self._stream.isatty():
            self._drawn = True
            filled = _BAR * done // total
            bar = f"[{'#' * filled}{'.' * (_BAR - filled)}]"
            self._write(f"overlay: {bar} {done}/{total} {seconds:.0f} s {name}")

    def close(self) -> None:
        """Remove the bar."""
        if self._drawn:
            self._drawn = False
            self._write("")
            self._write("", end="\r")

    def _write(self, line: str, end: str = "") -> None:
        with suppress(OSError, ValueError):  # the terminal is gone
            self._stream.write(f"\r{line[:_WIDTH]:<{_WIDTH}}{end}")
            self._stream.flush()
