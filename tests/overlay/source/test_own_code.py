"""The digest of a patch that is a folder: of what runs, and not of what proves it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_upstream import PATCH_FILE, forget, write_files

from overlay.source import own_code
from overlay.source.own_code import files as _files
from overlay.source.own_code import of_pack
from overlay.source.registry import load_patches, of_code, of_overlay
from overlay.source.table import TABLE_FILE


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


def test_all_code_is_counted_of_overlay_and_of_a_pack_with_what_patches_were_tested_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks and locks compare it. What a patch was proven on is no code of it."""
    load_patches("digestpack")
    before = of_pack("digestpack"), of_code("lib.it")
    (folder.parent / TABLE_FILE).write_text("one")
    assert of_code("lib.it") == before[1]
    assert of_pack("digestpack") != before[0]
    whole = of_overlay()
    for file in (TABLE_FILE, "recompute/__init__.py", "engine.py", "warm.py"):
        with monkeypatch.context() as patch:
            patch.setattr(
                own_code,
                "files",
                lambda of, file=file: {k: p for k, p in _files(of).items() if not k.endswith(file)},
            )
            assert of_overlay() != whole, file


def test_a_pack_is_all_that_its_patches_can_import_beside_them(folder: Path) -> None:
    outer = folder.parents[2]
    write_files(outer / "acme", {"__init__.py": "", "helpers.py": "a = 1\n", "patches/__init__.py": ""})
    (outer / "acme/patches/lib").symlink_to(folder.parent)
    before = {of_pack("acme.patches")}
    (outer / "acme/.#helpers.py").symlink_to("me@host.1")  # as Emacs leaves it while a file is edited
    before.add(of_pack("acme.patches"))
    assert len(before) == 1
    (outer / "acme/helpers.py").write_text("a = 2\n")
    before.add(of_pack("acme.patches"))
    (folder / "fix.py").write_text("a = 3\n")
    before.add(of_pack("acme.patches"))
    (outer / "acme/kernel.cu").write_text("int a;\n")
    before.add(of_pack("acme.patches"))
    assert len(before) == 4


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
    (pack / "deep/round").symlink_to(pack)
    (pack / "linked.py").symlink_to(pack / "a.pyc")
    (pack / "gone.py").symlink_to(pack / "nowhere")
    walked = {
        str(Path(place, name).relative_to(pack))
        for folder in (pack, pack / "linked")
        for place, _, names in os.walk(folder)
        for name in names
        if "__pycache__" not in place and name.endswith((".py", ".pyc", ".so")) and name != "gone.py"
    }
    assert set(_files("digestpack")) == walked >= {"deep/e/f.py", "linked/e/f.py", "x.py/g.py", "linked.py"}
