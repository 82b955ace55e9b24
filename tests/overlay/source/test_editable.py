"""Editable installs in a folder that is looked at: followed without running anything, or named."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from fake_upstream import write_files

from overlay.source.source import InstalledTree

if TYPE_CHECKING:
    from pathlib import Path

FINDER = """
raise SystemExit("this ran")
from __future__ import annotations
MAPPING: dict[str, str] = {mapping!r}
NAMESPACES: dict[str, list[str]] = {namespaces!r}
"""
MARKERS = {"up.core", "space.core.info"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    names = ("up/__init__.py", "up/core.py", "space/core/__init__.py", "space/core/info.py")
    write_files(tmp_path / "root/src", dict.fromkeys(names, "def f(): ...\n"))
    return tmp_path / "root" / "src"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "root" / "lib" / "site-packages"
    folder.mkdir(parents=True)
    return folder


def write_finder(site: Path, mapping: dict[str, str], namespaces: dict[str, list[str]]) -> None:
    (site / "__editable___up_1_finder.py").write_text(FINDER.format(mapping=mapping, namespaces=namespaces))
    line = "import __editable___up_1_finder; __editable___up_1_finder.install()"
    (site / "__editable__.up-1.pth").write_text(line)


def test_a_path_in_a_pth_file_is_followed(site: Path, source: Path) -> None:
    (site / "easy-install.pth").write_text(f"# here\n\n{source}\n/nowhere/else\n")
    tree = InstalledTree(str(site))
    assert tree.file("up.core") == str(source / "up" / "core.py")
    assert tree.file("space.core.info") == str(source / "space" / "core" / "info.py")
    assert tree.has("up.core:f")
    said = [
        f"{name} is an editable install: {site}/easy-install.pth leads to {source}"
        for name in ("space", "up")
    ]
    assert tree.remarks(MARKERS) == said


def test_a_path_in_a_pth_file_may_be_relative(site: Path, source: Path) -> None:
    (site / "a.pth").write_text("../../src\n")
    assert InstalledTree(str(site)).file("up.core") == str(source / "up" / "core.py")


def test_a_finder_of_setuptools_is_read_and_not_run(site: Path, source: Path) -> None:
    mapping = {"up": str(source / "up"), "space.core": str(source / "space" / "core")}
    write_finder(site, mapping, {"space": []})
    tree = InstalledTree([str(site)])
    assert tree.file("up.core") == str(source / "up" / "core.py")
    # `space` is a namespace without a folder, as `megatron` is where only `megatron.core` is installed.
    assert tree.file("space.core.info") == str(source / "space" / "core" / "info.py")
    assert not tree.has("space.other")
    assert len(tree.remarks(MARKERS)) == 2


def test_namespaces_of_a_finder_are_joined_with_those_of_the_path(site: Path, source: Path) -> None:
    write_finder(site, {}, {"space": [str(source / "space")]})
    (site / "space" / "more").mkdir(parents=True)
    (site / "space" / "more" / "it.py").write_text("")
    tree = InstalledTree(str(site))
    assert tree.has("space.core.info")
    assert tree.has("space.more.it")


def test_what_is_installed_comes_before_what_is_editable(site: Path, source: Path) -> None:
    write_finder(site, {"up": str(source / "up")}, {})
    (site / "up").mkdir()
    (site / "up" / "__init__.py").write_text("")
    tree = InstalledTree(str(site))
    assert tree.file("up") == str(site / "up" / "__init__.py")
    assert not tree.has("up.core")


def test_paths_of_an_image_are_looked_for_in_it(site: Path, source: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    inside = {"up": "/src/up", "space.core": "/src/space/core"}
    write_finder(site, inside, {"space": []})
    tree = InstalledTree(str(site))
    assert not tree.has("up")
    lost = [line for line in tree.remarks(MARKERS) if "/src/up" in line]
    said = (
        f"{site}/__editable___up_1_finder.py leads to /src/up, which is not at /src/up: give the "
        "folder that is / to it with --root, or the source itself with one more --site"
    )
    assert lost == [said]
    tree = InstalledTree(str(site), str(root))
    assert tree.has("up.core:f")
    assert tree.has("space.core.info:f")


@pytest.mark.parametrize("text", ["{", "[]", "{1: 2, 'a': 3, 'b': [4]}", "\x00"])
def test_garbage_is_no_link(site: Path, text: str) -> None:
    (site / "a.pth").write_text(
        f"import\nimport \nimport os, sys; 1\n{text}\nimport __editable___up_1_finder"
    )
    (site / "__editable___up_1_finder.py").write_text(f"MAPPING = {text}\n")
    tree = InstalledTree(str(site))
    assert not tree.has("up")
    assert all("\n" not in line for line in tree.remarks({"up.core"}))


def test_python_finds_the_same(site: Path, source: Path) -> None:
    pytest.importorskip("setuptools", minversion="77")
    from setuptools.command.editable_wheel import _finder_template  # type: ignore[import-untyped]

    mapping = {"up": str(source / "up"), "space.core": str(source / "space" / "core")}
    made = _finder_template("__editable___up_1_finder", mapping, {"space": []})
    (site / "__editable___up_1_finder.py").write_text(made)
    (site / "__editable__.up-1.pth").write_text("import __editable___up_1_finder as f; f.install()")
    tree = InstalledTree(str(site))
    names = ["up", "up.core", "space.core", "space.core.info"]
    code = (
        "import sys, site, importlib.util as u; site.addsitedir(sys.argv[1]);"
        "print(*(u.find_spec(n).origin for n in sys.argv[2:]), sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(site), *names],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == [tree.file(name) for name in names]
