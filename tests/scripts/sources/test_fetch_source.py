"""Fetching from git, and the lines of a list of releases, on repositories and bundles made here."""

from __future__ import annotations

import contextlib
import io
import os
import re
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest
from command_line import git
from fake_upstream import write_files

from records import fetch as fetching
from sources import git_sources, releases
from sources.git_sources import FetchError

VARIABLES = ("SLIME_REPO", "MEGATRON_REPO", "VERL_REPO", "MILES_REPO")

#: slime's diff of Megatron: one file that the distribution has, and one that it has not.
DIFF = """--- a/megatron/core/it.py
+++ b/megatron/core/it.py
@@ -1 +1 @@
-VALUE = 1
+VALUE = 2
--- a/megatron/training/it.py
+++ b/megatron/training/it.py
@@ -1 +1 @@
-VALUE = 1
+VALUE = 2
"""


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A repository with a tag v0.2.4, and a branch of that name which says something else."""
    repo = tmp_path / "repo"
    sources = dict.fromkeys(("slime/data.py", "slime_plugins/it.py"), "VALUE = 1\n")
    off, other = DIFF.replace("-VALUE = 1", "-VALUE = 7"), DIFF.replace("/core/", "/training/")
    diffs = {"docker/it.patch": DIFF, "docker/off.patch": off, "docker/other.patch": other}
    write_files(repo, {**sources, **diffs, "setup.py": ""})
    git(repo, "init", "--quiet")
    git(repo, "add", ".")
    git(repo, "commit", "--quiet", "--message=one")
    git(repo, "tag", "v0.2.4")
    write_files(repo, {"slime/data.py": "VALUE = 2\n"})
    git(repo, "commit", "--quiet", "--all", "--message=two")
    git(repo, "branch", "v0.2.4")
    return repo


@pytest.fixture
def megatron(tmp_path: Path) -> Path:
    """A bundle that has the tree of a commit, and not the commit."""
    repo = tmp_path / "megatron"
    write_files(repo, {"megatron/core/it.py": "VALUE = 1\n"})
    git(repo, "init", "--quiet", "--initial-branch=at-0123abcde")
    git(repo, "add", ".")
    git(repo, "commit", "--quiet", "--message=the tree")
    git(repo, "bundle", "create", "../megatron.bundle", "--all")
    return tmp_path / "megatron.bundle"


@pytest.fixture(autouse=True)
def nothing_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have neither a repository nor anything that was fetched before."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(git_sources, "CLONES", tmp_path / "clones")


class Done(NamedTuple):
    """What came of a call."""

    status: int
    folders: list[Path]
    said: list[str]


def fetch(cache: Path, project: str, *revisions: str, **given: object) -> Done:
    """Fetch revisions with some variables set, as `./scripts/matrix fetch` does."""
    words = ["--cache", str(cache), *(f"{project}=={revision}" for revision in revisions)]
    out, err = io.StringIO(), io.StringIO()
    told = {name: str(value) for name, value in given.items()}
    with mock.patch.dict(os.environ, told), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = fetching.main(words)
    return Done(status, list(map(Path, out.getvalue().splitlines())), err.getvalue().splitlines())


def image(folder: Path, line: str, **given: object) -> Path:
    """Fetch what is one line of a list of releases."""
    (folder / "list.txt").write_text(f"# A list.\n{line}\n")
    with mock.patch.dict(os.environ, {name: str(value) for name, value in given.items()}):
        (release,) = releases.read(folder / "list.txt")
        return releases.fetch(release, folder / "cache")


def complaint(done: Done) -> str:
    """Return the one line that a call ended with."""
    assert done.status == 1, done
    (line,) = done.said
    return line


def test_a_tag_is_unpacked_and_the_second_call_needs_no_repository(repo: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    (folder,) = fetch(cache, "slime", "v0.2.4", SLIME_REPO=repo).folders
    assert (folder / "slime" / "data.py").read_text() == "VALUE = 1\n"
    assert fetch(cache, "slime", "v0.2.4").folders == [folder]
    assert [path.name for path in cache.iterdir()] == ["slime-v0.2.4"]


def test_a_bundle_is_as_good_as_a_repository(repo: Path, tmp_path: Path) -> None:
    git(repo, "bundle", "create", "../slime.bundle", "--all")
    head = git(repo, "rev-parse", "HEAD")
    bundle, cache = tmp_path / "slime.bundle", tmp_path / "cache"
    found = fetch(cache, "slime", "v0.2.4", head[:9], SLIME_REPO=bundle).folders
    assert [(folder / "slime/data.py").read_text() for folder in found] == ["VALUE = 1\n", "VALUE = 2\n"]
    (clone,) = (tmp_path / "clones").iterdir()
    # What takes the place of a bundle is not taken for it.
    write_files(repo, {"slime/data.py": "VALUE = 3\n"})
    git(repo, "commit", "--quiet", "--all", "--message=three")
    git(repo, "bundle", "create", "../slime.bundle", "--all")
    newer = git(repo, "rev-parse", "HEAD")
    assert fetch(cache, "slime", newer, SLIME_REPO=bundle).status == 0
    assert len(list((tmp_path / "clones").iterdir())) == 2
    assert clone.is_dir()


@pytest.mark.parametrize("revision", ["0123abc", "0123abcdef0123abcdef0123abcdef0123abcdef"])
def test_the_tree_of_a_commit_stands_for_it(megatron: Path, tmp_path: Path, revision: str) -> None:
    done = fetch(tmp_path / "cache", "megatron", revision, MEGATRON_REPO=megatron)
    assert (done.folders[0] / "megatron/core/it.py").exists(), done
    # And of a clone of the bundle, which has it as a branch of a remote.
    git(tmp_path, "clone", "--quiet", str(megatron), "clone")
    assert fetch(tmp_path / "again", "megatron", revision, MEGATRON_REPO=tmp_path / "clone").status == 0


def test_what_cannot_be_had_is_named(repo: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    done = fetch(cache, "slime", "v9.9.9", "main; true", "v0.2.4", SLIME_REPO=repo)
    assert done.status == 1
    first, second = done.said
    missing = f"fetch: slime v9.9.9 is not in SLIME_REPO={repo}: fetch it there from THUDM/slime"
    assert first.startswith(missing)
    assert second.startswith("fetch: slime 'main; true': expected a tag such as v0.2.4")
    assert [folder.name for folder in done.folders] == ["slime-v0.2.4"]
    gone = complaint(fetch(cache, "slime", "0123456789", SLIME_REPO=repo))
    assert f"slime 0123456789 is not in SLIME_REPO={repo}" in gone
    assert "SLIME_REPO is not set" in complaint(fetch(cache, "slime", "v0.3.1"))
    unset = complaint(fetch(cache, "miles", "0123456"))
    assert "MILES_REPO is not set (a clone of radixark/miles" in unset


def test_what_is_no_source_is_one_line(repo: Path, megatron: Path, tmp_path: Path) -> None:
    text, cut, empty = (tmp_path / name for name in ("text.bundle", "cut.bundle", "empty"))
    text.write_text("no bundle")
    cut.write_bytes(megatron.read_bytes()[:-40])
    empty.mkdir()
    # A bundle of something else.
    git(repo, "bundle", "create", "../slime.bundle", "--all")
    for given, what in (
        (text, " is no git bundle"),
        (cut, " is no git bundle"),
        (empty, " is no git repository"),
        (tmp_path / "nowhere", " is not there"),
        (tmp_path / "slime.bundle", ": fetch it there"),
    ):
        said = complaint(fetch(tmp_path / "cache", "megatron", "0123abc", MEGATRON_REPO=given))
        assert f"MEGATRON_REPO={given}{what}" in said
        assert ": give a clone of NVIDIA/Megatron-LM, or a git bundle of it" in said or what[0] == ":"
    assert not [path.name for path in (tmp_path / "clones").iterdir() if path.name.startswith(".")]
    assert not list((tmp_path / "cache").iterdir())


def test_an_image_is_its_parts_in_one_folder_with_the_diff_applied(
    repo: Path, megatron: Path, tmp_path: Path
) -> None:
    # In a folder of a repository git takes paths for those of the repository, unless it is told.
    git(tmp_path, "init", "--quiet")
    line = "slime image v1 = slime v0.2.4 + megatron 0123abc + docker/it.patch + TE 2.10"
    folder = image(tmp_path, line, SLIME_REPO=repo, MEGATRON_REPO=megatron)
    assert (folder / "megatron/core/it.py").read_text() == "VALUE = 2\n"
    assert (folder / "slime/data.py").read_text() == "VALUE = 1\n"
    # The part is as it was, nothing is asked twice, and other parts are another folder.
    assert (tmp_path / "cache/megatron-0123abc/megatron/core/it.py").read_text() == "VALUE = 1\n"
    assert image(tmp_path, line) == folder
    assert image(tmp_path, line.replace(" + docker/it.patch", ""), SLIME_REPO=repo) != folder


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("slime v0.2.4 + megatron 0123abc + docker/off.patch", "off.patch of slime v0.2.4 does not apply: "),
        (
            "slime v0.2.4 + megatron 0123abc + docker/other.patch",
            "other.patch of slime v0.2.4 changed nothing",
        ),
        ("slime v0.2.4 + megatron 0123abc + docker/none.patch", "docker/none.patch"),
        ("slime v0.2.4 + megatron 7654321", "megatron 7654321 is not in MEGATRON_REPO="),
        ("megatron 0123abc + docker/it.patch", "docker/it.patch is a path in slime, and the image has none"),
        ("slime v0.2.4 + megatron", "list.txt:2: 'megatron' is no project with a version"),
    ],
)
def test_an_image_that_cannot_be_made_is_not_there(
    repo: Path, megatron: Path, tmp_path: Path, line: str, said: str
) -> None:
    with pytest.raises((FetchError, releases.ListError), match=re.escape(said)):
        image(tmp_path, f"slime image v1 = {line}", SLIME_REPO=repo, MEGATRON_REPO=megatron)
    cache = tmp_path / "cache"
    assert not [path for path in (cache.iterdir() if cache.exists() else []) if "image" in path.name]
