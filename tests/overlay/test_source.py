"""Sources are found without importing anything."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from fake_upstream import PROJECT

from overlay._source import InstalledTree, MemoryTree
from overlay.errors import SourceError

if TYPE_CHECKING:
    from pathlib import Path

    from fake_upstream import Upstream


@pytest.fixture
def namespaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Two folders that share the namespace package `fakens.inner`, as Megatron's `megatron` is one."""
    for name, module in (("one", "left"), ("two", "right")):
        folder = tmp_path / name / "fakens" / "inner"
        folder.mkdir(parents=True)
        (folder / f"{module}.py").write_text("raise AssertionError('imported')\ndef f(): pass\n")
        monkeypatch.syspath_prepend(str(tmp_path / name))
    return str(tmp_path / "one"), str(tmp_path / "two")


def test_nested_namespace_packages_are_walked_and_not_imported(namespaces: tuple[str, str]) -> None:
    tree = InstalledTree()
    assert tree.has("fakens.inner.left:f")
    assert tree.has("fakens.inner.right:f")
    assert tree.has("fakens.inner")
    assert not tree.has("fakens.inner.middle")
    assert not tree.has("fakens.inner.left:g")
    assert not [name for name in sys.modules if name.startswith("fakens")]
    one = InstalledTree(namespaces[0])
    assert one.has("fakens.inner.left")
    assert not one.has("fakens.inner.right")


def test_a_folder_alone_is_looked_at_alone(
    upstream: Upstream, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert InstalledTree(str(upstream.root)).has("fakeup.core:scale")
    assert not InstalledTree(str(tmp_path_factory.mktemp("empty"))).has("fakeup.core")
    assert not InstalledTree(str(upstream.root)).has("json")
    assert "fakeup" not in sys.modules


def test_the_module_that_was_imported_is_the_one_that_counts(
    upstream: Upstream, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream.load()
    other = tmp_path_factory.mktemp("other")
    (other / "fakeup").mkdir()
    (other / "fakeup/core.py").write_text("def other(): pass\n")
    monkeypatch.syspath_prepend(str(other))
    assert InstalledTree().has("fakeup.core:scale")
    assert InstalledTree(str(other)).has("fakeup.core:other")


def test_versions_come_from_the_source_and_metadata_is_told_apart(upstream: Upstream) -> None:
    info = upstream.root / "fakeup_dist-1.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fakeup-dist\nVersion: 1.1.0\n")
    for tree in (InstalledTree(), InstalledTree(str(upstream.root))):
        assert PROJECT.read_version(tree.read) == "1.2.0"
        assert tree.metadata_version(PROJECT) == "1.1.0"
    verdict = __import__("overlay._decide", fromlist=["decide"]).decide(upstream.patch(), InstalledTree())
    assert verdict.targets[0].metadata_version == "1.1.0"


def test_source_that_cannot_be_decoded_or_parsed(upstream: Upstream) -> None:
    (upstream.root / "fakeup/core.py").write_bytes(b"# coding: utf-8\n\xff\xfe\n")
    with pytest.raises(SourceError):
        InstalledTree().has("fakeup.core:scale")
    upstream.write(core="def scale(:\n")
    with pytest.raises(SourceError, match="does not parse"):
        InstalledTree().has("fakeup.core:scale")


def test_memory_trees_answer_as_folders_do(upstream: Upstream) -> None:
    files = {
        str(path.relative_to(upstream.root)): path.read_text()
        for path in upstream.root.rglob("*")
        if path.is_file()
    }
    memory, folder = MemoryTree(files), InstalledTree(str(upstream.root))
    for site in (
        "fakeup",
        "fakeup.core",
        "fakeup.core:scale",
        "fakeup.core:Engine.run",
        "fakeup.none",
        "fakeup.core:no",
    ):
        assert memory.has(site) == folder.has(site)
        assert memory.digest(site) == folder.digest(site)
    assert memory.is_package("fakeup") and folder.is_package("fakeup")  # noqa: PT018
    assert not memory.is_package("fakeup.core") and not folder.is_package("fakeup.core")  # noqa: PT018
