"""Patches are found wherever Python finds their modules."""

from __future__ import annotations

import compileall
import importlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_upstream import PATCH_FILE, forget, write_files

from overlay.errors import OverlayError
from overlay.source.registry import content_of, load_patches

PATCH = PATCH_FILE.format(id="lib.two-words")
FOUND = ["lib.in-a-folder", "lib.two-words"]


@pytest.fixture
def pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write a pack of one patch, with what else may lie there."""
    root = tmp_path / "root"
    files = {
        "fakepack/__init__.py": "",
        "fakepack/lib/__init__.py": "",
        "fakepack/lib/two_words.py": PATCH,
        "fakepack/lib/in_a_folder/__init__.py": PATCH.replace("two-words", "in-a-folder"),
        "fakepack/lib/in_a_folder/contract.py": "raise AssertionError",
        "fakepack/lib/gone/__pycache__/__init__.cpython-311.pyc": "",
        "fakepack/lib/_shared/__init__.py": "raise AssertionError",
        "fakepack/lib/_private.py": "raise AssertionError",
        "fakepack/lib/.#two_words.py": "raise AssertionError",
        "fakepack/lib/two_words.bak.py": "raise AssertionError",
        "fakepack/lib/notes.txt": "",
        "fakepack/.hidden/x.py": "raise AssertionError",
    }
    write_files(root, files)
    monkeypatch.syspath_prepend(str(root))
    yield root
    forget("fakepack")


def test_sources(pack: Path) -> None:
    assert list(load_patches("fakepack")) == FOUND


def test_compiled_files_alone(pack: Path) -> None:
    (pack / "fakepack/lib/in_a_folder/contract.py").unlink()
    shutil.rmtree(pack / "fakepack/lib/_shared")
    for path in [*pack.rglob("_private.py"), *pack.rglob("*.bak.py"), *pack.rglob(".#*")]:
        path.unlink()
    assert compileall.compile_dir(pack, quiet=1, legacy=True)
    for path in pack.rglob("*.py"):
        path.unlink()
    importlib.invalidate_caches()
    assert list(load_patches("fakepack")) == FOUND


def test_its_digest_is_of_what_was_loaded(pack: Path) -> None:
    before = content_of("fakepack")
    load_patches("fakepack")
    (pack / "fakepack/lib/in_a_folder/__init__.py").write_text("raise AssertionError")
    assert content_of("fakepack") == before
    forget("fakepack")
    with pytest.raises(AssertionError):
        load_patches("fakepack")
    assert content_of("fakepack") != before


def test_a_pack_without_patches_is_an_error(pack: Path) -> None:
    (pack / "fakepack/lib/two_words.py").unlink()
    shutil.rmtree(pack / "fakepack/lib/in_a_folder")
    with pytest.raises(OverlayError, match="fakepack holds no patches"):
        load_patches("fakepack")


def test_a_file_that_is_no_patch_or_not_in_its_place_is_an_error(pack: Path) -> None:
    (pack / "fakepack/lib/other.py").write_text("")
    with pytest.raises(OverlayError, match="other defines no PATCH"):
        load_patches("fakepack")
    (pack / "fakepack/lib/other.py").write_text(PATCH)
    forget("fakepack")
    with pytest.raises(OverlayError, match="its place asks for"):
        load_patches("fakepack")
