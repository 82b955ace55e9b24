"""Find the Python that the environment is made with.

Standard library and Python 3.8 only, see environment.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from environment.setup_base import PYTHON, SetupError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def _candidates() -> Iterator[str]:
    yield sys.executable
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    folders += ["/usr/local/bin", "/usr/bin", "/opt/homebrew/bin"]
    wanted = "python{}.{}".format(*PYTHON)
    for name in (wanted, "python3", "python"):
        for folder in folders:
            yield str(Path(folder) / name)
    # Version managers whose interpreters need not be on the PATH, or are there as shims that refuse to start.
    homes = [os.environ.get("PYENV_ROOT", ""), "~/.pyenv", "~/.local/share/uv/python"]
    for home in filter(None, homes):
        for pattern in ("versions/{}.{}*/bin/", "cpython-{}.{}*/bin/"):
            found = Path(home).expanduser().glob(pattern.format(*PYTHON) + wanted)
            yield from sorted(map(str, found), reverse=True)


def find_python(candidates: Iterable[str] | None = None) -> str:
    """Return the path of a CPython 3.11 that can make virtual environments.

    Raises SetupError that says what was found instead and what to install.
    """
    probe = (
        "import sys, platform, ssl, venv; import ensurepip;"
        "print(*sys.version_info[:2], platform.python_implementation(), sys.executable, sep='\\n')"
    )
    version_only = "import sys; print(*sys.version_info[:2])"
    seen = set()
    crippled = []
    for path in _candidates() if candidates is None else candidates:
        if not path or path in seen or not os.access(path, os.X_OK) or Path(path).is_dir():
            continue
        seen.add(path)
        answer = output([path, "-I", "-c", probe])
        if answer is None:
            if output([path, "-I", "-c", version_only]) == "{} {}".format(*PYTHON):
                crippled.append(path)
            continue
        major, minor, implementation, executable = answer.split("\n", 3)
        if (int(major), int(minor)) == PYTHON and implementation == "CPython":
            return executable or path
    message = (
        "Python {0}.{1} is needed and was not found (the packages of the demo are tested on it alone).\n"
    )
    if crippled:
        message = "{2} is a Python {0}.{1} that cannot make virtual environments (no ensurepip or ssl).\n"
    message += (
        "Install it and run this again, for example:\n"
        "  Debian, Ubuntu    apt-get install python{0}.{1} python{0}.{1}-venv\n"
        "  Fedora            dnf install python{0}.{1}\n"
        "  macOS             brew install python@{0}.{1}\n"
        "  anywhere          pyenv install {0}.{1}    or    uv python install {0}.{1}"
    )
    raise SetupError(message.format(*PYTHON, ", ".join(crippled)))


def output(command: list[str]) -> str | None:
    """Return what `command` prints, or None if it fails, does not exist or hangs."""
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip()
