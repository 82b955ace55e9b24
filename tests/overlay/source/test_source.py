"""Sources are found without importing anything."""

from __future__ import annotations

import sys
import warnings
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from fake_upstream import PROJECT, MemoryTree, Upstream, tables

from overlay.errors import SourceError
from overlay.source.decide import decide
from overlay.source.source import Tree
from overlay.source.unwarned import unwarned


@pytest.fixture
def namespaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Two folders that share the namespace package `fakens.inner`, as Megatron's `megatron` is one."""
    for name, module in (("one", "left"), ("two", "right")):
        folder = tmp_path / name / "fakens" / "inner"
        folder.mkdir(parents=True)
        (folder / f"{module}.py").write_text("raise AssertionError('imported')\ndef f(): pass\n")
        monkeypatch.syspath_prepend(str(tmp_path / name))
    return str(tmp_path / "one"), str(tmp_path / "two")


#: Of each of these, Python warns: when it parses it, and when it compiles it.
WARNED_OF = 'def f(x):\n    return "\\d", x is 1\n'


def test_what_python_warns_of_is_read_without_a_word_where_warnings_are_errors_too() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = [*warnings.filters]
        tree = MemoryTree({"m.py": WARNED_OF})
        assert tree.digest("m:f")
        assert tree.code("m:f")
        assert warnings.filters == before
        # Meanwhile others are warned as ever, and may reset the filters.
        with pytest.raises(UserWarning), unwarned("m.py"):
            warnings.warn_explicit("", UserWarning, "mm.py", 1)
        with unwarned("m.py"):
            warnings.resetwarnings()
        assert warnings.filters == []


def test_a_path_is_a_place_as_its_text_is(tmp_path: Path) -> None:
    place = str(tmp_path)
    for site in (place, tmp_path, [place], [tmp_path], (tmp_path,)):
        assert (Tree(site).sites, Tree(site).name) == ([place], place)


def test_nested_namespace_packages_are_walked_and_not_imported(namespaces: tuple[str, str]) -> None:
    tree = Tree()
    assert tree.has("fakens.inner.left:f")
    assert tree.has("fakens.inner.right:f")
    assert tree.has("fakens.inner")
    assert not tree.has("fakens.inner.middle")
    assert not tree.has("fakens.inner.left:g")
    assert not [name for name in sys.modules if name.startswith("fakens")]
    one = Tree(namespaces[0])
    assert one.has("fakens.inner.left")
    assert not one.has("fakens.inner.right")


def test_a_project_that_is_installed_elsewhere_is_named(tmp_path: Path) -> None:
    folders = {"one": "/nowhere/Megatron-LM\n", "two": "import __editable___slime_1_finder\n"}
    for name, text in folders.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.pth").write_text(text)
    (tmp_path / "one/verl.pth").write_text("")
    (tmp_path / "two/verl").mkdir()
    said = Tree([str(tmp_path / name) for name in folders]).remarks(["megatron.core", "slime", "verl"])
    assert [(line.split()[0], line.split()[5]) for line in said] == [
        ("megatron", f"{tmp_path}/one/x.pth"),
        ("slime", f"{tmp_path}/two/x.pth"),
    ]


def test_the_module_that_was_imported_is_the_one_that_counts(
    upstream: Upstream, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream.load()
    other = tmp_path_factory.mktemp("other")
    (other / "fakeup").mkdir()
    (other / "fakeup/core.py").write_text("def other(): pass\n")
    monkeypatch.syspath_prepend(str(other))
    assert Tree().has("fakeup.core:scale")
    assert Tree(str(other)).has("fakeup.core:other")


def test_versions_come_from_the_source_and_metadata_is_told_apart(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = upstream.root / "fakeup_dist-1.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fakeup-dist\nVersion: 1.1.0\n")
    monkeypatch.setattr(sys, "path", [b"/bytes", *sys.path])  # which Python passes over
    for tree in (Tree(), Tree(str(upstream.root))):
        assert PROJECT.read_version is not None
        assert PROJECT.read_version(tree.read) == "1.2.0"
        assert tree.metadata_version(PROJECT) == "1.1.0"
    verdict = decide(upstream.patch(), Tree(), tables())
    assert verdict.targets[0].metadata_version == "1.1.0"


def test_source_that_cannot_be_decoded(upstream: Upstream) -> None:
    (upstream.root / "fakeup/core.py").write_bytes(b"# coding: utf-8\n\xff\xfe\n")
    with pytest.raises(SourceError):
        Tree().has("fakeup.core:scale")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
def test_source_is_decoded_as_python_does(upstream: Upstream, encoding: str) -> None:
    source = f"# -*- coding: {encoding.removesuffix('-sig')} -*-\ndef scale(value):\n    return '\u00e9'\n"
    (upstream.root / "fakeup/core.py").write_bytes(source.encode(encoding))
    tree = Tree(str(upstream.root))
    assert tree.digest("fakeup.core:scale") == MemoryTree({"m.py": source}).digest("m:scale")


def test_an_archive_without_sources_says_so(tmp_path: Path) -> None:
    import py_compile
    import zipfile

    (tmp_path / "m.py").write_text("def f(): pass\n")
    py_compile.compile(str(tmp_path / "m.py"), cfile=str(tmp_path / "m.pyc"))
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        archive.write(tmp_path / "m.pyc", "m.pyc")
    with pytest.raises(SourceError, match="without its source"):
        Tree(str(tmp_path / "m.zip")).has("m:f")


def test_a_site_that_nothing_can_be_imported_from_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "broken.whl").write_bytes(b"PK\x03\x04 broken")
    sites: list[Any] = [tmp_path / "broken.whl", str(tmp_path / "gone"), "", "a\0b", b"a", 123, [3]]
    for right in ([tmp_path], {tmp_path: 0}, deque([str(tmp_path)])):
        assert Tree(right).sites == [str(tmp_path)]  # type: ignore[arg-type]
    with pytest.raises(SourceError, match="no folder is given"):
        Tree([])
    for wrong in (*sites, [tmp_path, "gone"]):
        with pytest.raises(SourceError, match="neither a folder nor an archive"):
            Tree(wrong)


@pytest.mark.parametrize("core", ["def f(:\n", "x = " + "-" * 100_000 + "1", "x = " + "(" * 1000, "x = \0"])
def test_source_that_no_parser_takes(upstream: Upstream, core: str) -> None:
    upstream.write(core=core)
    with pytest.raises(SourceError, match="does not parse"):
        Tree().has("fakeup.core:scale")


def test_a_path_that_a_package_extends_when_it_is_imported(
    upstream: Upstream, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "fakeup").mkdir()
    (other / "fakeup/__init__.py").write_text("")
    (other / "fakeup/mark.py").write_text("")
    monkeypatch.setattr(sys, "path", [*sys.path, str(other)])
    upstream.write(__init__="from pkgutil import extend_path\n__path__ = extend_path(__path__, __name__)\n")
    assert not Tree().has("fakeup.mark")
    upstream.load()
    assert Tree().has("fakeup.mark")
    assert Tree().has("fakeup.core:scale")


@pytest.mark.parametrize(
    ("metadata", "version"),
    [
        (None, None),
        (b"", None),
        (b"garbage\n\nVersion: 3\n", None),
        (b"Metadata-Version: 2.1\nSummary: a\n  b\nVersion: 1.1\n\nVersion: 3\n", "1.1"),
        (b"Name: x\n\n", None),
    ],
)
def test_metadata_that_an_installer_did_not_finish(
    upstream: Upstream, metadata: bytes | None, version: str | None
) -> None:
    info = upstream.root / "fakeup_dist-1.1.0.dist-info"
    info.mkdir()
    if metadata is not None:
        (info / "METADATA").write_bytes(metadata)
    assert Tree(str(upstream.root)).metadata_version(PROJECT) == version


@pytest.mark.parametrize(
    "statement",
    [
        "from other import f",
        "from other import (\n    a,  # (one)\n    f,\n)",
        "from other import \\\n    f",
        "from other import \\\n    (a,\n    f)",
        "from other import(a,f)",
        "if True:\n    from other import g as f, h",
        "x = 1; from other import f",
    ],
)
def test_what_is_imported_is_followed(statement: str) -> None:
    tree = MemoryTree({"m.py": f"{statement}\n", "other.py": "def f(): pass\ndef g(): pass\n"})
    name = "g" if "g as f" in statement else "f"
    assert tree.chain("m:f") == ["m:f", f"other:{name}"]


def test_what_a_module_defines_is_not_imported_and_needs_no_parsing(parsed: list[str]) -> None:
    text = "from other import (g, h\n)\nasync def f(): pass\nclass A:\n    def f(self): pass\n"
    tree = MemoryTree({"m.py": text})
    assert (tree.chain("m:A.f"), tree.chain("m:f"), parsed) == (["m:A.f"], ["m:f"], [])
    assert (tree.chain("m:h"), len(parsed)) == (["m:h", "other:h"], 1)
