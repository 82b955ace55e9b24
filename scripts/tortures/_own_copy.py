"""A copy of the checkout that runs its tests on itself: what is changed in it is changed nowhere else.

It has a virtual environment in which overlay is installed from the copy, editable as in the checkout. All
else comes from the environment that runs this.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
#: The folders of our own code.
ROOMS = ("overlay", "compat", "patches")
#: Exit statuses of pytest: all passed, and nothing was selected.
_PASSED, _NOTHING = 0, 5


class Ran(NamedTuple):
    """What came of a run of pytest."""

    #: The first test that failed, or what else ended the run; empty if nothing did.
    failed: str
    output: str


class Copy:
    """A copy of the checkout in a folder that is not there yet."""

    def __init__(self, folder: Path) -> None:
        """Copy what git knows and what it does not ignore, and make the environment."""
        self.root = folder
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
        for name in filter(None, names.split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        fetched = ROOT / ".cache" / "releases"
        if fetched.is_dir():
            (folder / ".cache").mkdir()
            (folder / ".cache" / "releases").symlink_to(fetched.resolve())
        self.python = self._environment()
        # Python tells a source that has changed by whole seconds, and by its size.
        self._ages = itertools.count(1_000_000_000)

    def _environment(self) -> Path:
        """Make the environment, and return its Python."""
        place = self.root / ".venv"
        venv.create(place, symlinks=True)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        site = place / "lib" / version / "site-packages"
        others = Path(sysconfig.get_path("purelib"))
        # Of its start-up files none is read but the one of overlay, and those that lead to the checkout.
        (site / "others.pth").write_text(f"{others}\n", encoding="utf-8")
        for path in (self.root / "startup").iterdir():
            shutil.copy2(path, site)
        for path in others.glob("__editable__*overlay*"):
            text = path.read_text(encoding="utf-8").replace(str(ROOT), str(self.root))
            (site / path.name).write_text(text, encoding="utf-8")
        return place / "bin" / "python"

    def file_with(self, text: str) -> Path:
        """Return the one file of our code that has a text, once. Raises `ValueError` if there is none."""
        files = [path for room in ROOMS for path in (self.root / room).rglob("*.py")]
        places = [path for path in files for _ in range(path.read_text(encoding="utf-8").count(text))]
        if len(places) != 1:
            msg = f"this is there {len(places)} times, not once: {text}"
            raise ValueError(msg)
        return places[0]

    @contextlib.contextmanager
    def changed(self, old: str, new: str) -> Iterator[None]:
        """Have one text in place of another for as long as the context lasts."""
        path = self.file_with(old)
        before = path.read_text(encoding="utf-8")
        self._write(path, before.replace(old, new))
        try:
            yield
        finally:
            self._write(path, before)

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        age = next(self._ages)
        os.utime(path, (age, age))

    def tests(self, names: Sequence[str]) -> list[str]:
        """Return the test files of some names, as paths from the root. Raises `ValueError` without one."""
        found = []
        for name in names:
            paths = [str(path.relative_to(self.root)) for path in (self.root / "tests").rglob(name)]
            if len(paths) != 1:
                msg = f"there are {len(paths)} test files {name}"
                raise ValueError(msg)
            found += paths
        return found

    def pytest(self, arguments: Sequence[str], seconds: float) -> Ran:
        """Run pytest on the copy up to the first failure."""
        options = ["-x", "-q", "--tb=line", "-p", "no:cacheprovider"]
        command = [str(self.python), "-m", "pytest", *options, *arguments]
        with subprocess.Popen(
            command,
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                return Ran(f"no end within {seconds:g} s", "")
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        if process.returncode in (_PASSED, _NOTHING):
            return Ran("", output)
        named = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
        return Ran(named[1] if named else f"exit status {process.returncode}", output)
