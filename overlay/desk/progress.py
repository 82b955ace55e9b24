"""A progress bar on the terminal, for commands that take long."""

from __future__ import annotations

import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

#: Seconds after which a wait is long, and between two drawings.
PATIENCE = 2.0
_PERIOD = 0.2
_BAR = 20
#: A line that fills the terminal makes some go on to the next one.
_WIDTH = 79


class Progress:
    """A bar on a terminal, there from `PATIENCE` seconds on, and gone without a trace at the end.

    On anything but a terminal there is nothing. A thread draws it: what takes long may be a single file.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._state = 0, 0, ""
        self._start = time.monotonic()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._draw, name="overlay-progress", daemon=True)
        if stream.isatty():
            self._thread.start()

    def __call__(self, done: int, total: int, name: str) -> None:
        """Say that `done` of `total` things are done, and which one is next."""
        self._state = done, total, name

    def close(self) -> None:
        """Remove the bar. Nothing is drawn after this has returned."""
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join()

    def line(self) -> str:
        """Return the text of the bar."""
        done, total, name = self._state
        seconds = f"{time.monotonic() - self._start:.0f} s"
        if not total:
            return f"overlay: {seconds}"
        filled = _BAR * done // total
        return f"overlay: [{'#' * filled}{'.' * (_BAR - filled)}] {done}/{total} {seconds} {name}"

    def _draw(self) -> None:
        drawn = False
        while not self._closed.wait(_PERIOD if drawn else PATIENCE):
            drawn = True
            self._write(f"\r{self.line()[:_WIDTH]:<{_WIDTH}}")
        if drawn:
            self._write(f"\r{'':<{_WIDTH}}\r")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the terminal is gone
            self._closed.set()
