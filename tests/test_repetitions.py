"""What is left to the nightly run: a test that says so, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from checks import UPSTREAMS

CONFTEST = UPSTREAMS / "repetitions.py"
TESTS_HERE = Path(__file__).parent
TESTS = """
import pytest

pytestmark = pytest.mark.nightly("others stand for it", release=("0.1", "0.2"))


@pytest.mark.parametrize("release", ["0.1", "0.2", "1.0"])
def test_other(release):
    pass


def test_of_none():
    pass


@pytest.mark.nightly("others stand for it", world=(8, "x"))
@pytest.mark.parametrize("release", ["0.2", "1.0"])
@pytest.mark.parametrize("world", [2, 8, "x", "y"])
def test_world(release, world):
    pass


@pytest.mark.nightly("others stand for it")
def test_long():
    pass
"""


@pytest.mark.parametrize("by_day", [True, False])
def test_what_says_so_is_left_out_by_day_alone(tmp_path: Path, by_day: bool) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    (tmp_path / "test_it.py").write_text(TESTS)
    clean = {name: value for name, value in os.environ.items() if name != "TESTS_ONCE"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={**clean, "COLUMNS": "200", **({"TESTS_ONCE": "1"} if by_day else {})},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    lines = [line for line in done.stdout.splitlines() if " SKIPPED " in line]
    assert all("left to the nightly run: oth" in line for line in lines), done.stdout
    expected = ["test_other[0.1]", "test_other[0.2]", "test_long"]
    expected += [f"test_world[{world}-0.2]" for world in (2, 8, "x", "y")]
    expected += [f"test_world[{world}-1.0]" for world in (8, "x")]
    skipped = [line.partition("::")[2].split()[0] for line in lines]
    assert sorted(skipped) == (sorted(expected) if by_day else [])


def test_wherever_something_is_left_to_the_nightly_run_it_is_left() -> None:
    """The mark means something below a `conftest.py` alone that takes the hook in."""
    hooked = {
        path.parent for path in TESTS_HERE.rglob("conftest.py") if "pytest_runtest_setup" in path.read_text()
    }
    marked = [path for path in TESTS_HERE.glob("*/**/test_*.py") if "mark.nightly(" in path.read_text()]
    assert len(marked) > 20
    assert [path for path in marked if not hooked & set(path.parents)] == []
