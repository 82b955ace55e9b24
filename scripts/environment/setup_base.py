"""What the set-up scripts share: where things are, how progress is shown, and the error they raise.

Standard library and Python 3.8 only, see environment.py.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

ROOT = Path(__file__).resolve().parents[2]
#: The version of the environment's Python: the one that the pins are tested with.
PYTHON = (3, 11)
#: Settings of the caller that would put packages elsewhere, or other packages in place of the pinned ones.
FOREIGN_SETTINGS = (
    "PIP_CONSTRAINT",
    "PIP_BUILD_CONSTRAINT",
    "PIP_REQUIREMENT",
    "PIP_TARGET",
    "PIP_PREFIX",
    "PIP_ROOT",
    "PIP_USER",
    "PIP_NO_DEPS",
    "PIP_UPGRADE",
    "PIP_FORCE_REINSTALL",
    "PIP_IGNORE_INSTALLED",
    "PIP_DRY_RUN",
    "PIP_LOG",
    "PYTHONHOME",
    "PYTHONPATH",
    "PYTHONSAFEPATH",
    "__PYVENV_LAUNCHER__",
)


class SetupError(Exception):
    """The environment cannot be made. The message says what to do about it."""


class Layout:
    """Where things are. A class of its own so that tests can point it at an empty folder."""

    def __init__(self, root: Path = ROOT) -> None:
        """Derive every path from `root`, the checkout."""
        self.root = root
        self.venv = root / ".venv"
        self.python = self.venv / "bin" / "python"
        self.state = self.venv / "overlay-environment.json"
        self.cache = root / ".cache"
        self.lock = self.cache / "environment.lock"
        self.log = self.cache / "install.log"
        self.requirements = root / "scripts" / "environment" / "requirements"
        self.constraints = self.requirements / "constraints.txt"


def child_environment(layout: Layout) -> dict[str, str]:
    """Return the variables for a process inside the environment, as activating it would set them."""
    env = {name: value for name, value in os.environ.items() if name not in FOREIGN_SETTINGS}
    env["VIRTUAL_ENV"] = str(layout.venv)
    env["PATH"] = os.pathsep.join([str(layout.venv / "bin"), env.get("PATH", os.defpath)])
    return env


class Progress:
    """One line on stderr that says what is being done and for how long.

    On a terminal the line is rewritten in place; elsewhere (a CI log) a line is added every 15 seconds.
    """

    INTERVAL = 15.0

    def __init__(self, stream: TextIO | None = None) -> None:
        """Start the clock. `stream` is stderr unless told otherwise."""
        self.stream = sys.stderr if stream is None else stream
        self.started = time.monotonic()
        self.in_place = self.stream.isatty() and os.environ.get("TERM", "") not in {"", "dumb"}
        self.width = shutil.get_terminal_size().columns if self.in_place else 110
        self.last = self.started

    def _write(self, text: str) -> None:
        # A closed pipe on stderr is no reason to stop installing.
        with contextlib.suppress(OSError, ValueError):
            self.stream.write(text)
            self.stream.flush()

    def _text(self, message: str) -> str:
        text = f"[{time.monotonic() - self.started:4.0f} s] {message}"
        return text if len(text) < self.width else text[: self.width - 2] + "…"

    def say(self, message: str) -> None:
        """Write a line that stays."""
        self.last = time.monotonic()
        text = f"[{self.last - self.started:4.0f} s] {message}"
        self._write(("\r\x1b[K" if self.in_place else "") + text + "\n")

    def tick(self, message: str) -> None:
        """Show `message` as what is being done right now; call it as often as you like."""
        if self.in_place:
            self._write("\r\x1b[K" + self._text(message))
        elif time.monotonic() - self.last >= self.INTERVAL:
            self.last = time.monotonic()
            self._write(self._text(message) + "\n")
