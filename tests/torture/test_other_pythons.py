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

import pytest

from checks import ENGINE
from records import known

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with overlay and what it needs, which no Python has built anything into."""
    return known.packages(tmp_path_factory.mktemp("packages"))


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


@pytest.mark.parametrize("version", known.PYTHONS)
def test_every_python_comes_to_the_same(
    version: str, packages: Path, here: dict[str, str], tmp_path: Path
) -> None:
    path = known.pythons().get(version)
    if path is None:
        pytest.skip(f"there is no Python {version} on this machine")
    assert "wrong" not in here.values()
    assert list(here.values()).count("right") > 10
    assert here["ledger"] == "applied "
    assert came(path, packages, tmp_path) == here
