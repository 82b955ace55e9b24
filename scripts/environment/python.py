"""Find the Python that the environment is made with.

Standard library and Python 3.8 only, see setup.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: The version of the environment's Python: the one that the pins are tested with.
PYTHON = (3, 11)
NAME = "python{}.{}".format(*PYTHON)

_PROBE = """
import ensurepip, platform, ssl, sys, venv
print(*sys.version_info[:2], platform.python_implementation(), sys.executable, sep="\\n")
"""


class SetupError(Exception):
    """The environment cannot be made. The message says what to do about it."""


def find_python(candidates: Iterable[str | None] | None = None) -> str:
    """Return the path of a CPython 3.11 that can make virtual environments.

    Raises SetupError that says what to install.
    """
    for path in _candidates() if candidates is None else candidates:
        answer = output([path, "-I", "-c", _PROBE]) if path else None
        if answer is not None:
            major, minor, implementation, executable = answer.split("\n", 3)
            if (int(major), int(minor)) == PYTHON and implementation == "CPython":
                return executable
    raise SetupError(
        f"{NAME} with venv is needed and was not found: the packages of the demo are tested on it alone.\n"
        "Install it and run this again, for example:\n"
        f"  Debian, Ubuntu    apt-get install {NAME} {NAME}-venv\n"
        f"  Fedora            dnf install {NAME}\n"
        f"  macOS             brew install {NAME.replace('python', 'python@')}\n"
        f"  anywhere          uv python install {NAME[6:]}    or    pyenv install {NAME[6:]}"
    )


def _candidates() -> Iterator[str | None]:
    yield sys.executable
    yield shutil.which(NAME)
    yield shutil.which("python3")
    # Where version managers keep those that are not on the path, or are there as shims that refuse to start.
    yield output(["uv", "python", "find", "--no-project", NAME[6:]])
    versions = Path(os.environ.get("PYENV_ROOT") or "~/.pyenv").expanduser() / "versions"
    yield from sorted(map(str, versions.glob(f"{NAME[6:]}*/bin/{NAME}")), reverse=True)


def output(command: list[str], env: dict[str, str] | None = None) -> str | None:
    """Return what `command` prints, or None if it fails, does not exist or hangs."""
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=30, check=True, env=env
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip()
