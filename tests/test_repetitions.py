"""What is left to the nightly run: a test on a release with the variant of another one, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from checks import UPSTREAMS

if TYPE_CHECKING:
    from collections.abc import Callable

CONFTEST = UPSTREAMS / "repetitions.py"
TESTS_HERE = Path(__file__).parent
#: What stands for variants: the first digit of a release, and of 0.x nothing can be had.
VARIANTS = """
def variant_of(patches, project, release):
    assert (patches, project) == (("up.fix",), "up")
    return None if release.startswith("0") else (release[0],)
"""
TESTS = """
import pytest

pytestmark = pytest.mark.by_variant("up.fix", release="up")
of_all = pytest.mark.parametrize("release", ["0.1", "0.2", "1.0", "1.1", "2.0", "2.1"])


@of_all
@pytest.mark.parametrize("size", [1, 2])
def test_sized(release, size):
    pass


@of_all
def test_other(release):
    pass


def test_of_none():
    pass


@pytest.mark.nightly("others stand for it", release=("2.1",))
@of_all
def test_but_one(release):
    pass


@pytest.mark.nightly("others stand for it", world=(8, "x"))
@pytest.mark.parametrize("world", [2, 8, "x", "y"])
def test_world(world):
    pass


@pytest.mark.nightly("others stand for it")
def test_long():
    pass
"""


@pytest.fixture
def skipped(tmp_path: Path) -> Callable[..., list[str]]:
    """Return the function that runs the tests with some variables, and returns which were skipped."""

    def run(**variables: str) -> list[str]:
        (tmp_path / "conftest.py").write_text(CONFTEST.read_text() + VARIANTS)
        (tmp_path / "test_it.py").write_text(TESTS)
        clean = {name: value for name, value in os.environ.items() if name != "TESTS_ONCE"}
        command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider"]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env={**clean, "COLUMNS": "200", **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        lines = [line for line in done.stdout.splitlines() if " SKIPPED " in line]
        said = ("left to the nightly run: up ", "left to the nightly run: othe")
        assert all(any(words in line for words in said) for line in lines), done.stdout
        return [line.partition("::")[2].split()[0] for line in lines]

    return run


def test_each_test_runs_once_for_each_variant(skipped: Callable[..., list[str]]) -> None:
    assert sorted(skipped(TESTS_ONCE="1")) == sorted(
        [
            *(f"test_sized[{size}-{release}]" for size in (1, 2) for release in ("1.0", "2.0")),
            *(f"test_other[{release}]" for release in ("1.0", "2.0")),
            "test_but_one[1.0]",
            "test_but_one[2.1]",
            *(f"test_world[{world}]" for world in (8, "x")),
            "test_long",
        ]
    )


def test_unless_that_is_asked_for_all_of_them_run(skipped: Callable[..., list[str]]) -> None:
    assert skipped() == []


def test_wherever_something_is_left_to_the_nightly_run_it_is_left() -> None:
    """The marks mean something below a `conftest.py` alone that takes the hook in."""
    marks = ("mark.nightly(", "mark.by_variant(")
    hooked = {
        path.parent for path in TESTS_HERE.rglob("conftest.py") if "pytest_runtest_setup" in path.read_text()
    }
    marked = [
        path for path in TESTS_HERE.glob("*/**/test_*.py") if any(one in path.read_text() for one in marks)
    ]
    assert len(marked) > 20
    assert [path for path in marked if not hooked & set(path.parents)] == []
