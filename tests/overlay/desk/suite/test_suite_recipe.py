"""Recipes are data: what is wrong with one is one error that names file, key and value; and their sources."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest
from suite_project import Workplace

from overlay.desk.suite import recipe
from overlay.errors import SuiteError

GOOD = """
about = "It"
packages = ["it"]
include = ["tests/**/test_*.py"]
[tests]
from = ["it==1.0"]
"""
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
}


@pytest.mark.parametrize("name", sorted(recipe.shipped()))
def test_what_is_shipped_can_be_read(name: str) -> None:
    found = recipe.find(name)
    assert found.name == name
    # Nothing is quick that starts eight ranks for each file.
    assert bool(found.quick) == (found.ranks == 1)
    assert {*found.quick}.isdisjoint(name for files in found.exclude.values() for name in files)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD.replace('"It"', '"It"\nabuot = "It"'), "unknown key 'abuot'; there are: name, about,"),
        (GOOD.replace('about = "It"\n', ""), "missing the field 'about'"),
        (GOOD.replace('"It"', "3"), "about = 3 is not a text"),
        (GOOD.replace('["it"]', '"it"'), "packages = 'it' is not a list"),
        (GOOD.replace('["it"]', '["it", 3]'), "packages[1] = 3 is not a text"),
        (GOOD.replace('["it"]', '["../it"]'), "the package '../it' is not an import name"),
        ("ranks = true\n" + GOOD, "ranks = True is not a whole number"),
        (GOOD.replace("it==1.0", "it"), "`from` names 'it', which is not NAME==VERSION, $VARIABLE@TAG or"),
        (GOOD.replace("from", "form"), "`from` names ''"),
        (GOOD + "[variables]\nA = 1\n", "variables.A = 1 is not a text"),
        (GOOD + "[[tests", "cannot be read"),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    assert recipe.find(str(path)).time_limit == 120
    path.write_text(text)
    with pytest.raises(SuiteError) as caught:
        recipe.read(str(path))
    assert said in str(caught.value)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_an_sdist_comes_from_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tarfile.open(tmp_path / "tiny-1.0.tar.gz", "w:gz") as archive:
        for name, text in SDIST.items():
            info = tarfile.TarInfo(f"tiny-1.0/{name}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    # The next one is tried if one cannot be had.
    sources = {"from": ("$NOT_SET@v1.0", "tiny==1.0")}
    assert recipe.fetch(sources, str(tmp_path / "into")) == "sdist tiny==1.0"
    assert (tmp_path / "into" / "tests" / "test_tiny.py").is_file()
    with pytest.raises(
        recipe.UnavailableError, match=r"not set .*; tiny==2\.0: ERROR: No matching distribution"
    ):
        recipe.fetch({"from": ("$NOT_SET@v1.0", "tiny==2.0")}, str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("kind", ["repository", "bundle", "address"])
def test_a_tag_of_a_repository(
    workplace: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    # A branch is not taken for the tag of its name.
    workplace.git("branch", "v1.0")
    workplace.git("checkout", "--quiet", "refs/heads/v1.0")
    (workplace.repository / "fakesuite" / "core.py").write_text("")
    workplace.git("commit", "--quiet", "-a", "-m", "Another")
    workplace.git("bundle", "create", "--quiet", str(tmp_path / "it.bundle"), "--all")
    bundle = str(tmp_path / "it.bundle")
    monkeypatch.setenv("FAKESUITE_REPO", bundle if kind == "bundle" else str(workplace.repository))
    source = workplace.repository.as_uri() if kind == "address" else "$FAKESUITE_REPO"
    wanted = {"from": (f"{source}@v1.0",), "paths": ("tests", "fakesuite")}
    command = ["git", "-C", str(workplace.repository), "rev-parse", "refs/tags/v1.0"]
    commit = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert recipe.fetch(wanted, str(tmp_path / "into")) == f"{source}@v1.0 (commit {commit[:12]})"
    assert "value * 2" in (tmp_path / "into" / "fakesuite" / "core.py").read_text()
    assert not (tmp_path / "into" / "launch.py").exists()
    with pytest.raises(recipe.UnavailableError, match=r"@v2\.0: fatal: "):
        recipe.fetch({"from": (f"{source}@v2.0",)}, str(tmp_path / "none"))
