"""The engine on every other Python that it is for, as far as there is one on this machine.

What holds an original is asked of the garbage collector, and that answers differently from one release to the
next: Python 3.13 counts the arguments of the question among the answers.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import overlay
from checks import ENGINE

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
VERSIONS = ("3.10", "3.11", "3.12", "3.13")
#: What the engine needs, in plain Python.
NEEDED = ("packaging", "wrapt")


def python(version: str) -> str | None:
    """Return an interpreter of a version, on the path or of pyenv."""
    kept = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = [shutil.which(f"python{version}"), *map(str, sorted(kept.glob(f"{version}.*/bin/python")))]
    return next((path for path in found if path and _is(path, version)), None)


def _is(path: str, version: str) -> bool:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([path, "-I", "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() == version


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with overlay and what it needs, which no Python has built anything into."""
    folder = tmp_path_factory.mktemp("packages")
    (folder / "overlay").mkdir()
    inside = [Path(path) for path in overlay.__path__]
    for part in (entry for path in inside for entry in path.iterdir() if entry.name != "__pycache__"):
        (folder / "overlay" / part.name).symlink_to(part)
    for name in ("compat", "patches"):
        if not (folder / "overlay" / name).exists():
            (folder / "overlay" / name).symlink_to(ROOT / name)
    for name in NEEDED:
        (folder / name).symlink_to(Path(str(importlib.import_module(name).__file__)).parent)
    return folder


def came(path: str, packages: Path, folder: Path) -> dict[str, str]:
    clean = {name: text for name, text in os.environ.items() if not name.startswith(("OVERLAY", "PYTHON"))}
    where = os.pathsep.join(map(str, [packages, ENGINE]))
    done = subprocess.run(
        [path, "-W", "ignore", str(HERE / "other_python.py"), str(folder)],
        env={**clean, "PYTHONPATH": where, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONNOUSERSITE": "1"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def here(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return what each order comes to on this Python."""
    return came(sys.executable, packages, tmp_path_factory.mktemp("here"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("version", VERSIONS)
def test_every_python_comes_to_the_same(
    version: str, packages: Path, here: dict[str, str], tmp_path: Path
) -> None:
    path = python(version)
    if path is None:
        pytest.skip(f"there is no Python {version} on this machine")
    assert "wrong" not in here.values()
    assert list(here.values()).count("right") > 10
    assert here["ledger"] == "applied "
    assert came(path, packages, tmp_path) == here
