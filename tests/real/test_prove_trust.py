"""`overlay prove --trust` on a real slime of an unknown source: the whole road, and where it ends."""

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
BALANCING = "slime/utils/seqlen_balancing.py"
#: overlay's command line, where a contract is believed whatever share of changed sources it lets pass: what
#: was measured of this one changes with what was drawn, and here the road is looked at that a patch goes.
BELIEVING = """
import sys
from overlay.proving import strength
strength.LARGEST_SHARE = 1.0
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
        trust = {"OVERLAY_TRUST": "overlay.trust"} if self.trusts or "--trust" in arguments else {}
        return subprocess.run(
            [sys.executable, "-c", BELIEVING, *arguments],
            env={**clean, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1", **trust},
            cwd=self.folder, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip

    @property
    def trusts(self) -> bool:
        """Return whether something is trusted here."""
        return (self.folder / "overlay.trust").exists()

    def plan(self) -> tuple[str, str]:
        """Return the verdict on the patch, and why."""
        found = json.loads(self.run("plan", "--patches", PATCH, "--json").stdout)
        (verdict,) = (one for one in found["verdicts"] if one["patch"] == PATCH)
        return verdict["verdict"], verdict["reason"]

    def trust(self) -> str:
        """Return why the patch is not trusted, empty if it is."""
        done = self.run("prove", "--trust", PATCH, "--json")
        assert done.stdout, done.stderr
        (trial,) = json.loads(done.stdout)["trials"]
        assert bool(trial["why"]) == (done.returncode == 1) == (not self.trusts)
        return str(trial["why"])


@pytest.fixture
def installed(slime: Callable[[str], Path], tmp_path: Path) -> Installed:
    return Installed(slime("v0.2.4"), tmp_path / "installed")


#: Another name, and other words for people: another source of the same behaviour.
RENAMED = (("sorted_seqlen_list", "by_length"), ("repr_str", "told"))


def test_a_source_of_the_same_behaviour_is_trusted_to_the_letter(installed: Installed) -> None:
    installed.change(*RENAMED)
    assert installed.plan()[0] == "unsupported"
    assert installed.trust() == ""
    verdict, reason = installed.plan()
    assert verdict == "apply"
    assert "is trusted here: proven on 20" in reason
    assert installed.run("lock", "--patches", PATCH).returncode == 0
    assert "[patch.target.trusted]" in (installed.folder / "overlay.lock").read_text()
    installed.change(*RENAMED, ("self.sum = 0", "self.sum = 0 + 0"))
    verdict, reason = installed.plan()
    assert verdict == "unsupported"
    assert "is of another source: slime.utils.seqlen_balancing:karmarkar_karp" in reason
    assert installed.run("lock", "--check", "--patches", PATCH).returncode == 1


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        # Upstream orders its parts otherwise: with the patch they would be as before.
        (("if len(self.items) != len(other.items)", "if len(self.items) == len(other.items)"), "other part"),
        # Upstream asks for a setting, of which no input that is drawn knows.
        (
            ("sorted_seqlen_list = sorted(", "sorted_seqlen_list = [] if os.environ.get('X') else sorted("),
            "reads",
        ),
    ],
)
def test_a_change_that_the_patch_would_undo_is_not_trusted(
    installed: Installed, pair: tuple[str, str], said: str
) -> None:
    installed.change(pair)
    assert said in installed.trust()
