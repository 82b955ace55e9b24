"""scripts/records/retire.py, on removal tests of the tests' own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

SCRIPTS = Path(__file__).parents[3] / "scripts"

CODE = """
import sys
sys.path.insert(0, {scripts!r})
from records import retire
from pathlib import Path
from types import SimpleNamespace

NAMES = ("needed", "ready", "plain", "broken", "skipped")
TESTS = {{name: f"test_it.py::test_{{name}}" for name in NAMES}}
TESTS |= dict.fromkeys(("up.one", "up.other"), "test_it.py::test_both")
retire.ROOT = Path({folder!r})
retire.load_patches = lambda: {{
    name: SimpleNamespace(remove=SimpleNamespace(test=test)) for name, test in TESTS.items()
}}
sys.exit(retire.main(sys.argv[1:]))
"""

REMOVALS = """
import pytest

@pytest.mark.xfail(strict=True, reason="so")
@pytest.mark.parametrize("version", ["1", "2"])
def test_needed(version):
    assert False

fails = pytest.mark.xfail(strict=True, raises=AssertionError, reason="so")

@pytest.mark.parametrize("version", [pytest.param("1", marks=fails), "2"])
def test_plain(version):
    assert version == "2"

@pytest.mark.xfail(strict=True, reason="so")
def test_ready():
    pass

@pytest.mark.xfail(strict=True, raises=AssertionError, reason="so")
def test_broken():
    raise OSError("no such file")

def test_skipped():
    pytest.skip("not here")

@pytest.mark.parametrize(("patch", "release"), [("up.one", "1"), pytest.param("up.other", "2", marks=fails)])
def test_both(patch, release):
    assert patch == "up.one"
"""


def retire(folder: Path, *words: str) -> tuple[int, list[list[str]]]:
    (folder / "test_it.py").write_text(REMOVALS)
    code = textwrap.dedent(CODE).format(scripts=str(SCRIPTS), folder=str(folder))
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60, check=False
    )
    rows = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    known = {"needed", "ready", "plain", "broken", "skipped", "up.one", "up.other"}
    return done.returncode, [row for row in rows if row and row[0] in known and len(row) == 3]


def test_what_a_removal_test_says_of_a_patch(tmp_path: Path) -> None:
    code, rows = retire(tmp_path)
    assert code == 1
    found = {(patch, rest.split()[0] if patch in ("needed", "plain") else "") for patch, rest, *_ in rows}
    assert found >= {("needed", "1"), ("needed", "2"), ("plain", "1"), ("plain", "2")}
    said = {(row[0], row[1]): row[2] for row in rows}
    assert said["needed", "1"] == said["needed", "2"] == said["plain", "1"] == "still needed"
    assert said["plain", "2"] == "cured upstream"
    assert said["ready", "the"].endswith("ready to retire")
    assert "fails otherwise" in said["broken", "the"]
    assert "not run: not here" in said["skipped", "the"]


def test_one_test_may_be_that_of_many_patches(tmp_path: Path) -> None:
    rows = [["up.one", "1", "cured upstream"], ["up.other", "2", "still needed"]]
    assert retire(tmp_path, "up.one", "up.other") == (0, rows)
    assert retire(tmp_path, "up.other") == (0, rows[1:])


def test_patches_that_are_needed_are_no_failure(tmp_path: Path) -> None:
    assert retire(tmp_path, "needed", "plain", "skipped")[0] == 0
    assert retire(tmp_path, "ready")[0] == 1
    assert retire(tmp_path, "nonsense")[0] == 2
