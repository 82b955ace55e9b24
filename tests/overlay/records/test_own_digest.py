"""The digest of a patch that is a folder: of what runs, and not of what proves it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fake_upstream import PATCH_FILE, forget, write_files

from overlay.records import own_digest
from overlay.records.own_digest import _is_patch, of_code, of_overlay, of_package, of_patch
from overlay.source.own_code import files as _files
from overlay.source.registry import load_patches
from overlay.source.table import NAME

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    files = {
        "__init__.py": "",
        "lib/__init__.py": "",
        "lib/it/__init__.py": PATCH_FILE.format(id="lib.it"),
        "lib/it/fix.py": "a = 1\n",
        "lib/it/contract.py": "b = 1\n",
        "lib/it/contract/cases.py": "c = 1\n",
    }
    write_files(tmp_path / "digestpack", files)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path / "digestpack/lib/it"
    forget("digestpack")


def test_what_runs_is_counted_and_what_proves_it_is_not(folder: Path) -> None:
    assert list(load_patches("digestpack")) == ["lib.it"]
    before = of_patch("lib.it")
    assert len(before) == 64
    for name in ("contract.py", "contract/cases.py"):
        (folder / name).write_text("other = 2\n")
        assert of_patch("lib.it") == before, name
    for name in ("fix.py", "__init__.py", "another.py"):
        (folder / name).write_text(f"{name!r}\n")
        assert of_patch("lib.it") != before, name
        before = of_patch("lib.it")


def test_what_patches_were_tested_on_is_counted_of_all_but_not_of_one_patch(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks and locks compare it, as it says what is decided. What a patch was proven on does not end."""
    load_patches("digestpack")
    table = folder.parent / NAME
    table.write_text("one")
    before = of_package("digestpack"), of_code("lib.it"), of_patch("lib.it")
    table.write_text("two")
    after = of_package("digestpack"), of_code("lib.it"), of_patch("lib.it")
    assert [one == other for one, other in zip(before, after, strict=True)] == [False, True, True]
    whole = of_overlay()
    monkeypatch.setattr(
        own_digest, "_files", lambda name: {k: p for k, p in _files(name).items() if not k.endswith(NAME)}
    )
    assert of_overlay() != whole


def test_the_code_of_a_row_is_what_a_patch_does_and_its_contract_without_words(folder: Path) -> None:
    load_patches("digestpack")
    before = of_code("lib.it")
    declared = (folder / "__init__.py").read_text()
    for name, text in (
        ("fix.py", "# said otherwise\na  =  1\n"),
        ("contract.py", '"""A word."""\nb = 1\n'),
        ("__init__.py", declared.replace("PATCH = Patch(", "PATCH = Patch(met='Other words.', ")),
    ):
        (folder / name).write_text(text)
        assert of_code("lib.it") == before, name
    for name, text in (
        ("fix.py", "a = 2\n"),
        ("contract.py", "b = 2\n"),
        ("__init__.py", f"{declared}\nBOUND = 3\n"),
        ("another.py", "d = 1\n"),
    ):
        (folder / name).write_text(text)
        assert of_code("lib.it") != before, name
        before = of_code("lib.it")
    assert of_code("lib.gone") == ""


def test_all_code_below_a_folder_is_counted_and_nothing_else(folder: Path) -> None:
    pack = folder.parent.parent
    names = ("a.pyc", "b.so", "c.txt", "__pycache__/d.pyc", "deep/e/f.py", "x.py/g.py")
    write_files(pack, dict.fromkeys(names, ""))
    (pack / "linked").symlink_to(pack / "deep")
    (pack / "linked.py").symlink_to(pack / "a.pyc")
    (pack / "gone.py").symlink_to(pack / "nowhere")
    walked = {
        str(Path(place, name).relative_to(pack))
        for place, _, names in os.walk(pack)
        for name in names
        if "__pycache__" not in place and name.endswith((".py", ".pyc", ".so"))
    }
    assert set(_files("digestpack")) == walked >= {"deep/e/f.py", "x.py/g.py", "linked.py", "gone.py"}


@pytest.mark.parametrize(
    ("name", "is_patch"),
    [
        ("patches/slime/it.py", True),
        ("patches/slime/it/fix.py", True),
        ("patches/slime/it/contract/cases.py", True),
        ("patches/slime/__init__.py", False),
        ("patches/slime/_step.py", False),
        ("patches/_partition/level.py", False),
        ("compat/agreement.py", False),
    ],
)
def test_files_of_a_patch_are_not_those_of_overlay(name: str, is_patch: bool) -> None:
    assert _is_patch(name) is is_patch
