"""The other Pythons of this machine, and overlay with what it needs for any of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import overlay

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
#: What the engine needs, in plain Python.
NEEDED = ("packaging", "wrapt")


def pythons() -> dict[str, str]:
    """Return an interpreter of each version that there is, this one among them."""
    kept = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = {}
    for version in PYTHONS:
        here = [sys.executable] if version == f"{sys.version_info[0]}.{sys.version_info[1]}" else []
        at = [
            *here,
            shutil.which(f"python{version}"),
            *map(str, sorted(kept.glob(f"{version}.*/bin/python"))),
        ]
        right = next((path for path in at if path and _version(path) == version), None)
        if right is not None:
            found[version] = right
    return found


def _version(path: str) -> str:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([path, "-I", "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def packages(folder: Path) -> Path:
    """Return a folder with overlay and what it needs, into which no Python has built anything."""
    (folder / "overlay").mkdir(parents=True)
    inside = [Path(path) for path in overlay.__path__]
    for part in (entry for path in inside for entry in path.iterdir() if entry.name != "__pycache__"):
        (folder / "overlay" / part.name).symlink_to(part)
    for package in NEEDED:
        (folder / package).symlink_to(Path(str(import_module(package).__file__)).parent)
    return folder
