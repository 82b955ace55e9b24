"""The images and stacks that people run: overlay decides as recorded, and strict mode puts everything in.

Each image lies in one folder (`scripts/sources/releases.py`), and no other upstream is installed beside it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from checks import UPSTREAMS
from command_line import clean
from listed_sources import Listed

from overlay.source.registry import load_patches
from overlay.verdict import LOUD
from records import _support_print
from sources import releases

pytestmark = pytest.mark.real

ROOT = Path(__file__).resolve().parents[2]
RECORD = _support_print.recorded()
IMAGES = [line.name for line in releases.read() if line.is_image]

#: What is lacking for good: the patch was written for a later upstream, and would be another one.
LACKS = {
    "slime image v0.1.0": {"slime.loss-memory", "slime.whiten-over-cp"},
    "verl image 0.6.1": {"verl.megatron-offload-rest"},
    "verl image 0.6.1-experimental": {"verl.megatron-offload-rest"},
}

#: Those of each upstream at which all is tried by day: one that lacks something, and the last.
ASKED = ("slime image v0.1.0", "slime image main", "verl image 0.6.1", "verl image main", "miles-rl==0.0.2")
by_those_asked = pytest.mark.nightly(
    "the record of the others is held to what is decided",
    name=tuple(name for name in IMAGES if name not in ASKED),
)

#: Beginnings of what a site-packages has of the upstreams, and of this project as it is installed in place.
UPSTREAM = ("megatron", "slime", "verl", "miles", "__editable__", "__pycache__")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is installed here without any upstream: links to all else, and overlay as it is imported."""
    folder = tmp_path_factory.mktemp("installed")
    (folder / "overlay").mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith(UPSTREAM) and path.suffix != ".pth":
            (folder / path.name).symlink_to(path)
    for path in [*(ROOT / "overlay").iterdir(), ROOT / "patches", ROOT / "compat"]:
        if path.name != "__pycache__":
            (folder / "overlay" / path.name).symlink_to(path)
    return folder


class Imported:
    """What became of strict mode in the images, asked of one process in which each is a fork."""

    def __init__(self, bare: Path) -> None:
        environ = clean(PYTHONPATH=str(bare), OVERLAY_LOG="off", OMP_NUM_THREADS="1")
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-W", "ignore", str(UPSTREAMS / "image_check.py")],
            env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def __call__(self, folder: Path, selection: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([str(folder), selection]), file=self._process.stdin, flush=True)
        return dict(json.loads(self._process.stdout.readline() or '{"error": "the process ended"}'))

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=60)


@pytest.fixture(scope="module")
def imported(bare: Path) -> Any:
    """Return what enables a selection in strict mode in a folder and imports what is to be patched."""
    process = Imported(bare)
    yield process
    process.close()


@pytest.mark.parametrize("name", IMAGES)
def test_what_is_recorded_of_an_image_is_nothing_but_a_real_lack(name: str) -> None:
    # What is recorded is what is decided: test_tested_sources.py.
    usual = {patch for patch, said in load_patches().items() if not said.opt_in}
    loud = {patch for patch, verdict in RECORD[name].items() if verdict in LOUD}
    assert loud & usual == LACKS.get(name, set())


@by_those_asked
@pytest.mark.parametrize(
    ("name", "selection"),
    [*((name, "") for name in IMAGES), *((name, "slime.*") for name in IMAGES if name.startswith("slime "))],
)
def test_strict_mode_works_in_an_image(name: str, selection: str, listed: Listed, imported: Any) -> None:
    folder = listed(name)
    judge(name, folder, imported(folder, without_lacks(name, folder, selection, imported)))


def without_lacks(name: str, folder: Path, selection: str, imported: Any) -> str:
    """Return a selection without what an image lacks, which is an error until it is left out."""
    if name not in LACKS:
        return selection
    assert any(patch in imported(folder, selection)["error"] for patch in LACKS[name])
    return ",".join([selection or "all", *(f"-{patch}" for patch in sorted(LACKS[name]))])


def judge(name: str, folder: Path, found: dict[str, Any]) -> None:
    """Hold what was found in an image to what is recorded of it."""
    assert not found["error"], found.get("trace", found["error"])
    here = {patch: verdict for patch, verdict in found["plan"].items() if verdict != "not-installed"}
    assert here == {patch: RECORD[name][patch] for patch in here}
    # Whatever was to be applied is in place, and nothing else is.
    applied = {patch for patch, verdict in here.items() if verdict == "apply"}
    assert {patch for patch, state in found["ledger"].items() if state == "applied"} == applied
    assert not set(found["ledger"].values()) & {"failed", "incomplete", "reverted"}
    # In this very source.
    assert {Path(file).is_relative_to(folder) for file in found["files"].values()} == {True}
    # The ranks of the job are compared, once, when their groups are there.
    assert "megatron.agreement" in applied
    assert found["compared"] == [True]
