"""What overlay reads before the first module of an upstream: files and bytes, beside an empty interpreter.

They are counted by an audit hook that is there before the start-up files are read, so that what a job pays
with `OVERLAY=1` is counted whole. Unlike times they are the same in each run.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from benches._timing import Row, clean_environment, interpreter

ROOT = Path(__file__).resolve().parents[2]

#: What the issue of this project allows.
MOST_FILES, MOST_BYTES = 40, 1_000_000
#: Prints what is read by what the start-up file runs.
CODE = """
import os, sys
opened, writes = {}, os.O_WRONLY | os.O_RDWR
def hook(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and not (arguments[2] or 0) & writes:
        opened.setdefault(os.path.abspath(arguments[0]))
sys.path[:0] = sys.argv[1:]
sys.addaudithook(hook)
if os.environ["OVERLAY"] == "1":
    from overlay.launch import startup
    startup.start()
found = {path: os.path.getsize(path) for path in opened if os.path.isfile(path)}
import json
print(json.dumps([found, sorted(sys.modules)]))
"""


class Read(NamedTuple):
    """What the start of an interpreter reads."""

    #: The size of each file that was opened, as if it had been read whole.
    files: dict[str, int]
    modules: list[str]

    @property
    def size(self) -> int:
        """All bytes."""
        return sum(self.files.values())


def place(folder: Path) -> None:
    """Copy overlay into a folder as a wheel installs it: an installed checkout is found by other code."""
    for name, inside in (("overlay", ""), ("patches", "overlay"), ("compat", "overlay")):
        shutil.copytree(ROOT / name, folder / inside / name, ignore=shutil.ignore_patterns("__pycache__"))


def read(folder: Path, *, armed: bool) -> Read:
    """Return what the start of an interpreter reads, with compiled files.

    Args:
        folder: Where overlay lies.
        armed: Whether the environment asks for overlay.

    """
    command = interpreter("-S", "-c", CODE, str(folder))
    environ = {**clean_environment(), "OVERLAY": "1" if armed else "0"}
    for _ in range(2):  # the first may compile
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode or done.stderr:
        raise RuntimeError(f"an interpreter does not start:\n{done.stderr}")
    return Read(*json.loads(done.stdout))


def measure(_turns: int) -> list[Row]:
    """Compare what a start with overlay reads with what one without reads."""
    with tempfile.TemporaryDirectory() as folder:
        place(Path(folder))
        plain, armed = (read(Path(folder), armed=one) for one in (False, True))
    return [
        _row(
            "files read at start, OVERLAY=1 / OVERLAY=0",
            "files",
            len(plain.files),
            len(armed.files),
            MOST_FILES,
        ),
        _row(
            "kB read at start, OVERLAY=1 / OVERLAY=0",
            "kB",
            plain.size / 1e3,
            armed.size / 1e3,
            MOST_BYTES / 1e3,
        ),
    ]


def _row(name: str, unit: str, plain: float, armed: float, target: float) -> Row:
    more = armed - plain
    return Row(name, unit, plain, armed, more, more, target)
