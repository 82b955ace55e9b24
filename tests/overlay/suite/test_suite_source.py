"""What a recipe names is had from an index or a repository, and is there whole or not at all."""

from __future__ import annotations

import io
import subprocess
import tarfile
from typing import TYPE_CHECKING

import pytest

from overlay.errors import SuiteError
from overlay.suite.recipe import Source
from overlay.suite.source import obtain

if TYPE_CHECKING:
    from pathlib import Path

    from suite_project import Workplace

#: The least that pip asks of an sdist: a build backend that knows its name.
SDIST = {
    "PKG-INFO": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
    "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "made"\nbackend-path = ["."]\n',
    "made.py": (
        "import os\n"
        "def prepare_metadata_for_build_wheel(folder, settings=None):\n"
        "    os.mkdir(os.path.join(folder, 'tiny-1.0.dist-info'))\n"
        "    with open(os.path.join(folder, 'tiny-1.0.dist-info', 'METADATA'), 'w') as file:\n"
        "        file.write('Metadata-Version: 2.1\\nName: tiny\\nVersion: 1.0\\n')\n"
        "    return 'tiny-1.0.dist-info'\n"
        "def build_wheel(*_): raise NotImplementedError\n"
        "def build_sdist(*_): raise NotImplementedError\n"
    ),
    "tests/test_tiny.py": "def test_it(): pass\n",
    "tiny/__init__.py": "",
}


def test_an_sdist_comes_from_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = tmp_path / "index"
    index.mkdir()
    with tarfile.open(index / "tiny-1.0.tar.gz", "w:gz") as archive:
        for name, text in SDIST.items():
            info = tarfile.TarInfo(f"tiny-1.0/{name}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    cache = tmp_path / "cache"
    tree = obtain([Source(sdist="tiny==1.0", paths=("tests",))], str(cache))
    assert tree.origin == "sdist tiny==1.0"
    assert [path.name for path in cache.iterdir()] == [tree.folder.rpartition("/")[2]]
    assert sorted(path.name for path in (cache / tree.folder).iterdir()) == ["tests"]
    (index / "tiny-1.0.tar.gz").unlink()
    assert obtain([Source(sdist="tiny==1.0", paths=("tests",))], str(cache)) == tree
    with pytest.raises(SuiteError, match=r"sdist tiny==2\.0: ERROR: No matching distribution"):
        obtain([Source(sdist="tiny==2.0")], str(cache))


def test_a_git_address_is_fetched_once(workplace: Workplace, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    source = Source(git=workplace.repository.as_uri(), revision="v1.0", paths=("tests", "fakesuite"))
    tree = obtain([source], str(cache))
    assert (cache / tree.folder / "tests" / "test_mixed.py").is_file()
    assert not (cache / tree.folder / "launch.py").exists()
    commit = subprocess.run(
        ["git", "-C", str(workplace.repository), "rev-parse", "v1.0"],  # noqa: S607 -- whichever git there is
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip
    assert tree.origin == f"{workplace.repository.as_uri()} at v1.0 (commit {commit[:12]})"
    workplace.repository.rename(tmp_path / "moved")
    assert obtain([source], str(cache)) == tree
    with pytest.raises(SuiteError, match="git fetch: fatal"):
        obtain([source.replace(revision="v2.0")], str(cache))


def test_the_next_source_is_tried(
    workplace: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOT_THERE", raising=False)
    monkeypatch.setenv("FAKESUITE_REPO", str(workplace.repository))
    missing = Source(checkout="NOT_THERE", revision="v1.0")
    found = obtain([missing, Source(checkout="FAKESUITE_REPO", revision="v1.0")], str(tmp_path / "cache"))
    assert found.origin.startswith("FAKESUITE_REPO at v1.0 (commit ")
    with pytest.raises(SuiteError, match=r"NOT_THERE is not set .*; NOT_THERE is not set"):
        obtain([missing, missing], str(tmp_path / "cache"))


def test_a_bundle_is_as_good_as_a_repository(
    workplace: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "it.bundle"
    workplace.git("bundle", "create", "--quiet", str(bundle), "--all")
    monkeypatch.setenv("FAKESUITE_REPO", str(bundle))
    source = Source(checkout="FAKESUITE_REPO", revision="v1.0")
    tree = obtain([source], str(tmp_path / "cache"))
    assert (tmp_path / "cache" / tree.folder / "fakesuite" / "core.py").exists()
    bundle.write_text("no bundle")
    with pytest.raises(SuiteError, match=r"it\.bundle is neither a git repository nor a git bundle"):
        obtain([source], str(tmp_path / "cache"))


def test_a_branch_is_not_taken_for_the_tag_of_its_name(workplace: Workplace, tmp_path: Path) -> None:
    workplace.git("branch", "v1.0")
    workplace.git("checkout", "--quiet", "refs/heads/v1.0")
    (workplace.repository / "fakesuite" / "core.py").write_text("")
    workplace.git("commit", "--quiet", "-a", "-m", "Another")
    workplace.git("branch", "--force", "v1.0-branch")
    tree = obtain([Source(git=workplace.repository.as_uri(), revision="v1.0")], str(tmp_path / "cache"))
    assert "value * 2" in (tmp_path / "cache" / tree.folder / "fakesuite" / "core.py").read_text()
