"""Fetching a release of a package index, without a network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from environment import inside

FETCH = (sys.executable, str(inside.__file__), "records.fetch")

#: A wheel in its least form: pip asks for no more to download it.
WHEEL = {
    "tiny/__init__.py": "VALUE = 1\n",
    "tiny-1.5.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.5\n",
    "tiny-1.5.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nTag: py3-none-any\n",
    "tiny-1.5.dist-info/RECORD": "",
}


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """A folder with one wheel, which is all that pip may look at."""
    from zipfile import ZipFile

    shelf = tmp_path / "shelf"
    shelf.mkdir()
    with ZipFile(shelf / "tiny-1.5-py3-none-any.whl", "w") as wheel:
        for name, text in WHEEL.items():
            wheel.writestr(name, text)
    return shelf


def fetch(shelf: Path, *requirements: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*FETCH, "--cache", str(shelf.parent / "cache"), *requirements],
        env={**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(shelf)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_a_release_is_unpacked_and_the_second_run_needs_no_index(shelf: Path) -> None:
    first = fetch(shelf, "Tiny==1.5")
    folder = Path(first.stdout.strip())
    assert folder == shelf.parent / "cache" / "tiny-1.5", first.stderr
    assert (folder / "tiny" / "__init__.py").read_text() == "VALUE = 1\n"
    (shelf / "tiny-1.5-py3-none-any.whl").unlink()
    assert fetch(shelf, "tiny==1.5").stdout == first.stdout
    assert [path.name for path in folder.parent.iterdir()] == ["tiny-1.5"]


def test_what_cannot_be_had_is_named_and_the_rest_is_fetched(shelf: Path) -> None:
    done = fetch(shelf, "tiny==2.0", "tiny==1.5")
    assert done.returncode == 1
    assert "cannot fetch tiny==2.0: ERROR: No matching distribution found" in done.stderr
    assert done.stdout.strip().endswith("tiny-1.5")


def test_only_pinned_releases_are_fetched(shelf: Path) -> None:
    done = fetch(shelf, "--", "tiny", "tiny>=1", "tiny==../x", "-r==1")
    assert done.returncode == 1
    assert done.stderr.count("expected NAME==VERSION") == 4
