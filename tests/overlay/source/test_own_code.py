"""The digest of a patch that is a folder: of what runs, and not of what proves it."""

from __future__ import annotations

import ast
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
    words = ("summary='Other', ", "why='Words', ", "upstream=('a#1',), ", "opt_in=True, ", "met='Others.', ")
    for name, text in (
        ("fix.py", "# said otherwise\na  =  1\n"),
        ("contract.py", '"""A word."""\nb = 1\n'),
        ("contract.py", "TYPE_CHECKING = False\nif TYPE_CHECKING:\n    import os\nb = 1\n"),
        *(("__init__.py", declared.replace("PATCH = Patch(", f"PATCH = Patch({one}")) for one in words),
    ):
        (folder / name).write_text(text)
        assert of_code("lib.it") == before, name
    for name, text in (
        ("fix.py", "a = 2\n"),
        ("contract.py", "b = 2\n"),
        ("fix.py", "TYPE_CHECKING = False\nif TYPE_CHECKING:\n    import os\nelse:\n    a = 2\n"),
        ("__init__.py", f"{declared}\nBOUND = 3\n"),
        ("another.py", "d = 1\n"),
        ("kernel.cpp", "int a;\n"),
        ("kernel.cpp", "int b;\n"),
        # The order of statements, and which of two functions of a folder a name is bound to.
        ("fix.py", "a = 1\na = 2\n"),
        ("fix.py", "a = 2\na = 1\n"),
        ("__init__.py", f"from digestpack.lib.it.fix import a as b\n{declared}"),
        ("__init__.py", f"from digestpack.lib.it.fix import c as b\n{declared}"),
        # Python runs the packages above first.
        ("../__init__.py", "import digestpack.lib.it.fix as fix\nfix.a = 3\n"),
        ("../../__init__.py", "from digestpack import setting\n"),
        ("../../setting.py", "a = 1\n"),
    ):
        (folder / name).write_text(text)
        assert of_code("lib.it") != before, name
        before = of_code("lib.it")
    assert of_code("lib.gone") == ""


@pytest.mark.parametrize(
    "said",
    [
        "one_target(P, variant('1', replaced('m:f', make_half)))",
        "one_target(P, variant('1', replaced('m:g', make_f)))",
        "one_target(P, variant('2', replaced('m:f', make_f)))",
        "one_target(P, variant('1', replaced('m:f', make_f), Absent(site='m:g')))",
        "one_target(P, variant('1', replaced('m:f', make_f)), tells=('m:g',))",
        "one_target(P, variant('1', replaced('m:f', make_f))), requires=('lib.other',)",
        "one_target(P, variant('1', replaced('m:f', make_f))), **MORE",
    ],
)
def test_what_a_declaration_says_about_replacing_is_code(folder: Path, said: str) -> None:
    load_patches("digestpack")
    found = set()
    for targets in ("one_target(P, variant('1', replaced('m:f', make_f)))", said):
        (folder / "__init__.py").write_text(f"PATCH = Patch(id='lib.it', why='words', targets={targets})\n")
        found.add(of_code("lib.it"))
    assert len(found) == 2


#: Imports of a module of the same pack.
IMPORTS = (
    "from digestpack.lib import _shared",
    "from digestpack.lib._shared import f",
    "from digestpack.lib._shared import *",
    "import digestpack.lib._shared as shared",
    "import digestpack.lib._shared.deep",
    "from .. import _shared",
    "from .._shared import f",
    "def late():\n    from digestpack.lib._shared import f",
    # By what it imports itself.
    "from digestpack import _through",
    "from digestpack.lib.other.part import g",
)


@pytest.mark.parametrize("line", IMPORTS)
def test_what_a_patch_imports_of_its_pack_is_code_of_it(folder: Path, line: str) -> None:
    load_patches("digestpack")
    shared = {
        "lib/_shared/__init__.py": "def f(): return 1\n",
        "lib/_shared/deep.py": "",
        "_through.py": "class C:\n    def m(self):\n        from .lib import _shared\n",
        "lib/other/__init__.py": PATCH_FILE.format(id="lib.other"),
        "lib/other/part.py": "from .._shared import f as g\n",
    }
    write_files(folder.parents[1], shared)
    (folder / "fix.py").write_text(line)
    before = of_code("lib.it")
    (folder.parent / "_shared/__init__.py").write_text("# Words\ndef f():  return 1\n")
    (folder.parent / "other/contract.py").write_text("unrelated = 1\n")
    assert of_code("lib.it") == before
    (folder.parent / "_shared/__init__.py").write_text("def f(): return 2\n")
    assert of_code("lib.it") != before


def test_a_patch_that_comes_with_overlay_rests_on_what_it_shares_with_others_and_not_on_overlay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load_patches()
    read: list[str] = []
    plain = ast.parse

    def parse(text: str, name: str = "") -> ast.Module:
        read.append(name)
        return plain(text, name)

    with monkeypatch.context() as patch:
        patch.setattr(ast, "parse", parse)
        of_code("slime.loss-memory")
    names = {"/".join(Path(name).parts[-2:]) for name in read}
    assert {"_packed_loss/compute.py", "patches/_tensor_holders.py", "contract/memory.py"} <= names
    assert all("patches" in Path(name).parts for name in read)


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
