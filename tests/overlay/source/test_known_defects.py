"""Defects are loaded when somebody asks for them. That no start does: tests/test_architecture.py."""

from __future__ import annotations

from pathlib import Path

import overlay.patches._defects as defects
from overlay.defect import READ
from overlay.source.known_defects import load_defects
from overlay.source.registry import import_module, load_patches


def test_each_defect_is_loaded_and_what_it_leaves_to_its_patch_stands_in_it() -> None:
    patches = load_patches()
    found = load_defects(patches)
    files = [path.stem for path in Path(defects.__path__[0]).glob("[!_]*.py")]
    written = [one for file in files for one in import_module(f"{defects.__name__}.{file}").DEFECTS]
    assert sorted(found) == sorted(one.id for one in written)
    for one in written:
        whole = found[one.id]
        if one.patch:
            patch = patches[one.patch]
            assert whole.upstream == (one.upstream or patch.upstream)
            assert whole.met == (one.met or patch.met)
            assert whole.shown == (one.shown or f"overlay prove {patch.id}")
        else:
            assert whole.shown == (one.shown or READ)


def test_a_defect_whose_patch_is_not_there_is_left_out() -> None:
    patches = load_patches()
    mended = next(one.patch for one in load_defects(patches).values() if one.patch)
    del patches[mended]
    left = load_defects(patches)
    assert left
    assert mended not in {one.patch for one in left.values()}
