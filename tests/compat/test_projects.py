"""How each upstream tells its version, on files written here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from fake_upstream import write_files

import overlay
from overlay.compat.projects import MEGATRON, MILES, SLIME
from overlay.source.source import Tree

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.patch import Project, ReadFile

#: Of slime and its fork.
MODULES = ("__init__", "utils/__init__", "utils/seqlen_balancing")
SETUP = """
from setuptools import setup

class Wheel:
    version = "9.9"

print(str(object="x"))
setup(name="slime", version="0.2.3", packages=["slime"])
"""


def stated(project: Project, read: ReadFile) -> str | None:
    assert project.read_version is not None
    return project.read_version(read)


def checkout(folder: Path, setup: str | None) -> Tree:
    files = dict.fromkeys((f"slime/{name}.py" for name in MODULES), "")
    write_files(folder, files if setup is None else {**files, "setup.py": setup})
    return Tree(str(folder))


def test_slime_says_its_version_beside_its_package(tmp_path: Path) -> None:
    tree = checkout(tmp_path, SETUP)
    assert tree.has(SLIME.marker)
    assert stated(SLIME, tree.read) == "0.2.3"


def test_slime_linked_into_another_folder_is_that_of_its_checkout(tmp_path: Path) -> None:
    checkout(tmp_path / "checkout", SETUP)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "slime").symlink_to(tmp_path / "checkout" / "slime")
    assert stated(SLIME, Tree(str(tmp_path / "site")).read) == "0.2.3"


@pytest.mark.parametrize(
    "setup",
    [
        None,
        "",
        "this is no Python",
        SETUP.replace('"slime"', '"other"', 1),
        SETUP.replace('version="0.2.3"', "version=read()"),
        SETUP.replace('version="0.2.3"', "version=3"),
        SETUP.replace('version="0.2.3", ', ""),
    ],
)
def test_a_setup_file_that_does_not_say_is_no_version(tmp_path: Path, setup: str | None) -> None:
    assert stated(SLIME, checkout(tmp_path, setup).read) is None


@pytest.mark.parametrize("suffix", ["", "rc3", ".dev0"])
def test_megatron_says_its_version_in_parts(suffix: str) -> None:
    parts = f"MAJOR = 0\nMINOR = 16\nPATCH = 1\nPRE_RELEASE = '{suffix}'\n"
    assert stated(MEGATRON, {"megatron/core/package_info.py": parts}.get) == f"0.16.1{suffix}"
    assert stated(MEGATRON, {"megatron/core/package_info.py": parts.replace("MINOR", "M")}.get) is None


def test_miles_is_told_by_the_name_that_the_package_index_has(tmp_path: Path) -> None:
    """The wheel has `miles` beside a Megatron and an SGLang of its own, and no `setup.py`."""
    files = dict.fromkeys((f"miles/{name}.py" for name in MODULES), "")
    files |= dict.fromkeys(("megatron/core/__init__.py", "megatron/core/parallel_state.py"), "")
    files["megatron/core/package_info.py"] = "MAJOR = 0\nMINOR = 16\nPATCH = 0\nPRE_RELEASE = 'rc0'\n"
    told = "Metadata-Version: 2.4\nName: miles-rl\nVersion: 0.0.2\n"
    write_files(tmp_path, {**files, "miles_rl-0.0.2.dist-info/METADATA": told})
    found = {one.patch: one for one in overlay.plan("all", str(tmp_path)).verdicts}
    for name, one in found.items():
        if name.startswith("miles."):
            assert (one.verdict, one.where()) == ("unknown-source", "miles 0.0.2"), name
            assert "does not exist" in one.reason
    assert found["megatron.agreement"].targets[0].version == "0.16.0rc0"
    assert Tree(str(tmp_path)).metadata_version(MILES) == "0.0.2"
