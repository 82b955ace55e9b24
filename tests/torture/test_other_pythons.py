"""The engine on every other Python that it is for, as far as there is one on this machine.

What holds an original is asked of the garbage collector, and that answers differently from one release to the
next: Python 3.13 counts the arguments of the question among the answers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import other_pythons
import pytest
from checks import ENGINE

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with overlay and what it needs, which no Python has built anything into."""
    return other_pythons.packages(tmp_path_factory.mktemp("packages"))


def run(path: str, packages: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a Python that finds overlay, and what tests of the engine share."""
    clean = {name: text for name, text in os.environ.items() if not name.startswith(("OVERLAY", "PYTHON"))}
    where = os.pathsep.join(map(str, [packages, ENGINE]))
    return subprocess.run(
        [path, "-W", "ignore", *words],
        env={**clean, "PYTHONPATH": where, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONNOUSERSITE": "1"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def came(path: str, packages: Path, folder: Path) -> dict[str, str]:
    done = run(path, packages, str(HERE / "other_python.py"), str(folder))
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def here(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return what each order comes to on this Python."""
    return came(sys.executable, packages, tmp_path_factory.mktemp("here"))


@pytest.mark.parametrize("version", other_pythons.PYTHONS)
def test_every_python_comes_to_the_same(
    version: str, packages: Path, here: dict[str, str], tmp_path: Path
) -> None:
    path = other_pythons.pythons().get(version)
    if path is None:
        pytest.skip(f"there is no Python {version} on this machine")
    assert "wrong" not in here.values()
    assert list(here.values()).count("right") > 10
    assert here["ledger"] == "applied "
    assert came(path, packages, tmp_path) == here


FORK = """
import os, sys, warnings
from pathlib import Path
from fake_upstream import tables
from order_world import write_upstream
from overlay.runtime.engine import Engine

patch = write_upstream(Path(sys.argv[1]))
sys.path.insert(0, sys.argv[1])
Engine.configuration = lambda self: "configuration: none"  # what tells it is not among the packages
engine = Engine(lambda: {patch.id: patch}, speaks=True, table=tables())
engine.enable()
import fakeup.core

with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
print([str(one.message) for one in said])
"""


@pytest.mark.parametrize("version", other_pythons.PYTHONS)
def test_a_fork_is_not_warned_of(version: str, packages: Path, tmp_path: Path) -> None:
    """From Python 3.12 on, `os.fork()` warns in a process of more threads than one."""
    path = other_pythons.pythons().get(version)
    if path is None:
        pytest.skip(f"there is no Python {version} on this machine")
    done = run(path, packages, "-c", FORK, str(tmp_path))
    assert done.stdout == "[]\n", done.stdout + done.stderr
    assert "overlay: configuration: " in done.stderr
