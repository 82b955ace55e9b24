"""`overlay prove --write` on a real slime of an unknown source: the whole road, and where it ends."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.real

PATCH = "slime.fast-partitioner"
#: The table that is written.
TABLE = "tested.json"
BALANCING = "slime/utils/seqlen_balancing.py"
#: overlay's command line, where a contract is believed whatever share of changed sources it lets pass: what
#: was measured of this one changes with what was drawn, and here the road is looked at that a patch goes.
BELIEVING = """
import sys
from overlay.desk.prove import rows
rows.LARGEST_SHARE = 1.0
from overlay.cli import main
sys.exit(main(sys.argv[1:]))
"""


class Installed:
    """A copy of slime v0.2.4 that can be changed, and overlay beside it."""

    def __init__(self, release: Path, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(release, folder, dirs_exist_ok=True)
        self.file = folder / BALANCING
        self.known = self.file.read_text()

    def change(self, *pairs: tuple[str, str]) -> None:
        """Write the release's source anew, changed."""
        text = self.known
        for old, new in pairs:
            assert old in text
            text = text.replace(old, new)
        self.file.write_text(text)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of overlay's."""
        clean = {key: value for key, value in os.environ.items() if not key.startswith("OVERLAY")}
        trust = {"OVERLAY_TRUST": TABLE} if self.trusts else {}
        return subprocess.run(
            [sys.executable, "-c", BELIEVING, *arguments],
            env={**clean, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1", **trust},
            cwd=self.folder, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip

    @property
    def trusts(self) -> bool:
        """Return whether something is trusted here."""
        return (self.folder / TABLE).exists()

    def plan(self) -> tuple[str, str]:
        """Return the verdict on the patch, and how it was proven here."""
        found = json.loads(self.run("plan", "--patches", PATCH, "--json").stdout)
        (verdict,) = (one for one in found["verdicts"] if one["patch"] == PATCH)
        return verdict["verdict"], verdict["targets"][0]["trusted"]

    def write(self, *more: str) -> str:
        """Return why no row was written for the patch, empty if one was."""
        done = self.run("prove", "--write", TABLE, *more, PATCH, "--json")
        assert done.stdout, done.stderr
        (tried,) = json.loads(done.stdout)["rows"]
        assert bool(tried["rows"]) == (done.returncode == 0) == self.trusts
        return "" if tried["rows"] else str(tried["why"])


@pytest.fixture
def installed(slime: Callable[[str], Path], tmp_path: Path) -> Installed:
    return Installed(slime("v0.2.4"), tmp_path / "installed")


#: Another name, and other words for people: another source of the same behaviour.
RENAMED = (("sorted_seqlen_list", "by_length"), ("repr_str", "told"))


def test_a_source_of_the_same_behaviour_is_written_once_it_was_read(installed: Installed) -> None:
    installed.change(*RENAMED)
    assert installed.plan()[0] == "unknown-source"
    assert "add --judged" in installed.write()
    assert installed.write("--judged") == ""
    verdict, proven = installed.plan()
    assert verdict == "apply"
    assert "proven on 20" in proven
    assert installed.run("lock", "--patches", PATCH).returncode == 0
    installed.change(*RENAMED, ("self.sum = 0", "self.sum = 0 + 0"))
    assert installed.plan()[0] == "unknown-source"
    assert installed.run("lock", "--check", "--patches", PATCH).returncode == 1


def test_a_change_that_the_patch_would_undo_is_not_written(installed: Installed) -> None:
    # Upstream orders its parts otherwise: with the patch they would be as before.
    installed.change(("if len(self.items) != len(other.items)", "if len(self.items) == len(other.items)"))
    assert "other part" in installed.write("--judged")
