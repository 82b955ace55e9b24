"""Defects are loaded when somebody asks for them, those of packs when one is named, and never at a start."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from typing import TYPE_CHECKING

import pytest

from overlay.defect import READ
from overlay.errors import OverlayError
from overlay.source import packs
from overlay.source.known_defects import load_defects
from overlay.source.registry import load_patches

if TYPE_CHECKING:
    from pathlib import Path

RECORD = """
from overlay.compat.projects import VERL
from overlay.defect import Defect
DEFECTS = (Defect(id={name!r}, project=VERL, summary="x.", harm="slow", patch={patch!r}),)
"""


@pytest.fixture
def pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    points = [metadata.EntryPoint(name="acme", value="acme_patches", group=packs.GROUP)]
    monkeypatch.setattr(metadata, "entry_points", lambda *, group: points)
    for name in [name for name in sys.modules if name.startswith("acme_patches")]:
        monkeypatch.delitem(sys.modules, name)
    folder = tmp_path / "acme_patches" / "_defects"
    folder.mkdir(parents=True)
    for package in (folder.parent, folder):
        (package / "__init__.py").write_text("")
    return folder / "verl.py"


def test_a_pack_brings_defects_once_it_is_named(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack.write_text(RECORD.format(name="acme/verl.slow", patch="verl.fast-partitioner"))
    patches = load_patches()
    assert "acme/verl.slow" not in load_defects(patches)
    monkeypatch.setenv("OVERLAY_PACKS", "acme")
    found = load_defects(patches)["acme/verl.slow"]
    # What it leaves to the patch stands in it.
    assert found.upstream == patches["verl.fast-partitioner"].upstream
    assert found.shown == "overlay prove verl.fast-partitioner"
    assert found.met == patches["verl.fast-partitioner"].met


def test_one_without_a_patch_that_names_no_test_was_read(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack.write_text(RECORD.format(name="acme/verl.slow", patch=""))
    monkeypatch.setenv("OVERLAY_PACKS", "acme")
    assert load_defects(load_patches())["acme/verl.slow"].shown == READ


@pytest.mark.parametrize(
    ("name", "patch", "words"),
    [("verl.slow", "", "no defect of an id"), ("acme/verl.slow", "acme/verl.gone", "there is no patch")],
)
def test_what_a_pack_may_not_bring(
    name: str, patch: str, words: str, pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack.write_text(RECORD.format(name=name, patch=patch))
    monkeypatch.setenv("OVERLAY_PACKS", "acme")
    with pytest.raises(OverlayError, match=words):
        load_defects(load_patches())


def test_a_pack_that_cannot_be_loaded_is_named(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack.write_text("import nothing_of_that_name\n")
    monkeypatch.setenv("OVERLAY_PACKS", "acme")
    with pytest.raises(OverlayError, match=r"acme_patches\._defects cannot be loaded"):
        load_defects(load_patches())


def test_no_trainer_loads_them() -> None:
    code = "import sys, overlay; overlay.enable(); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = done.stdout.split()
    assert "overlay.runtime.engine" in loaded
    assert not [
        name
        for name in loaded
        if name.startswith(("overlay.defect", "overlay.desk.audit", "overlay.patches._defects"))
    ]
