"""Fetching from git, and the lines of a list of releases, on repositories and bundles made here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
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


def git(repo: Path, *arguments: str) -> str:
    who = ["-c", "user.name=tests", "-c", "user.email=tests@localhost", "-c", "tag.gpgSign=false"]
    command = ["git", *who, "-C", str(repo), *arguments]
    done = subprocess.run(command, check=True, capture_output=True, timeout=60, text=True)
    return done.stdout.strip()


def write(repo: Path, **files: str) -> None:
    for name, text in files.items():
        path = repo / name.replace("__", "/").replace("_py", ".py").replace("_patch", ".patch")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A repository with a tag v0.2.4, and a branch of that name which says something else."""
    repo = tmp_path / "repo"
    write(repo, slime__data_py="VALUE = 1\n", setup_py="", docker__it_patch=DIFF, docker__off_patch="")
    write(repo, slime_plugins__it_py="VALUE = 1\n")
    (repo / "docker/off.patch").write_text(DIFF.replace("-VALUE = 1", "-VALUE = 7"))
    (repo / "docker/other.patch").write_text(DIFF.replace("/core/", "/training/"))
    git(repo, "init", "--quiet")
    git(repo, "add", ".")
    git(repo, "commit", "--quiet", "--message=one")
    git(repo, "tag", "v0.2.4")
    write(repo, slime__data_py="VALUE = 2\n")
    git(repo, "commit", "--quiet", "--all", "--message=two")
    git(repo, "branch", "v0.2.4")
    return repo


@pytest.fixture
def megatron(tmp_path: Path) -> Path:
    """A bundle that has the tree of a commit, and not the commit."""
    repo = tmp_path / "megatron"
    write(repo, megatron__core__it_py="VALUE = 1\n")
    git(repo, "init", "--quiet", "--initial-branch=at-0123abcde")
    git(repo, "add", ".")
    git(repo, "commit", "--quiet", "--message=the tree")
    git(repo, "bundle", "create", "../megatron.bundle", "--all")
    return tmp_path / "megatron.bundle"


def run(code: str, tmp_path: Path, *words: str, **given: object) -> subprocess.CompletedProcess[str]:
    """Run a line of Python on the scripts, with a cache of its own."""
    environment = {key: value for key, value in os.environ.items() if key not in VARIABLES}
    environment.update({name: str(value) for name, value in given.items()})
    first = "import sys, pathlib; from sources import git_sources, releases; "
    first += "where = pathlib.Path(sys.argv[1]); "
    first += "git_sources.CLONES = where / 'clones'; git_sources.fetch.__defaults__ = (where / 'cache',); "
    return subprocess.run(
        [sys.executable, "-c", first + code, str(tmp_path), *words],
        env=environment, cwd=SCRIPTS, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def fetch(tmp_path: Path, project: str, *revisions: str, **given: object) -> subprocess.CompletedProcess[str]:
    code = "from records import fetch; sys.exit(fetch.main(['--cache', str(where / 'cache'), *sys.argv[2:]]))"
    return run(code, tmp_path, *(f"{project}=={revision}" for revision in revisions), **given)


def image(tmp_path: Path, line: str, **given: object) -> subprocess.CompletedProcess[str]:
    """Fetch what is one line of a list of releases."""
    (tmp_path / "list.txt").write_text(f"# A list.\n{line}\n")
    code = "print(releases.fetch(releases.read(where / 'list.txt')[0], where / 'cache'))"
    return run(code, tmp_path, **given)


def complaint(done: subprocess.CompletedProcess[str]) -> str:
    """Return the one line that a run ended with."""
    assert done.returncode == 1, done.stdout
    (line,) = done.stderr.splitlines()
    return line


def test_a_tag_is_unpacked_and_the_second_run_needs_no_repository(repo: Path, tmp_path: Path) -> None:
    first = fetch(tmp_path, "slime", "v0.2.4", SLIME_REPO=repo)
    folder = Path(first.stdout.strip())
    assert (folder / "slime" / "data.py").read_text() == "VALUE = 1\n", first.stderr
    assert fetch(tmp_path, "slime", "v0.2.4").stdout == first.stdout
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["slime-v0.2.4"]


def test_a_bundle_is_as_good_as_a_repository(repo: Path, tmp_path: Path) -> None:
    git(repo, "bundle", "create", "../slime.bundle", "--all")
    head = git(repo, "rev-parse", "HEAD")
    bundle = tmp_path / "slime.bundle"
    done = fetch(tmp_path, "slime", "v0.2.4", head[:9], SLIME_REPO=bundle)
    assert [Path(line, "slime/data.py").read_text() for line in done.stdout.splitlines()] == [
        "VALUE = 1\n",
        "VALUE = 2\n",
    ]
    (clone,) = (tmp_path / "clones").iterdir()
    # What takes the place of a bundle is not taken for it.
    write(repo, slime__data_py="VALUE = 3\n")
    git(repo, "commit", "--quiet", "--all", "--message=three")
    git(repo, "bundle", "create", "../slime.bundle", "--all")
    newer = git(repo, "rev-parse", "HEAD")
    assert fetch(tmp_path, "slime", newer, SLIME_REPO=bundle).returncode == 0
    assert len(list((tmp_path / "clones").iterdir())) == 2
    assert clone.is_dir()


@pytest.mark.parametrize("revision", ["0123abc", "0123abcde", "0123abcdef0123abcdef0123abcdef0123abcdef"])
def test_the_tree_of_a_commit_stands_for_it(megatron: Path, tmp_path: Path, revision: str) -> None:
    done = fetch(tmp_path, "megatron", revision, MEGATRON_REPO=megatron)
    assert (Path(done.stdout.strip()) / "megatron/core/it.py").exists(), done.stderr
    # And of a clone of the bundle, which has it as a branch of a remote.
    git(tmp_path, "clone", "--quiet", str(megatron), "clone")
    again = fetch(tmp_path / "again", "megatron", revision, MEGATRON_REPO=tmp_path / "clone")
    assert again.returncode == 0, again.stderr


def test_what_cannot_be_had_is_named(repo: Path, tmp_path: Path) -> None:
    done = fetch(tmp_path, "slime", "v9.9.9", "main; true", "v0.2.4", SLIME_REPO=repo)
    assert done.returncode == 1
    first, second = done.stderr.splitlines()
    assert first.startswith(
        f"fetch: slime v9.9.9 is not in SLIME_REPO={repo}: fetch it there from THUDM/slime"
    )
    assert second.startswith("fetch: slime 'main; true': expected a tag such as v0.2.4")
    assert done.stdout.strip().endswith("slime-v0.2.4")
    gone = complaint(fetch(tmp_path, "slime", "0123456789", SLIME_REPO=repo))
    assert f"slime 0123456789 is not in SLIME_REPO={repo}" in gone
    assert "SLIME_REPO is not set" in complaint(fetch(tmp_path, "slime", "v0.3.1"))
    assert "MILES_REPO is not set (a clone of radixark/miles" in complaint(
        fetch(tmp_path, "miles", "0123456")
    )


def test_what_is_no_source_is_one_line(repo: Path, megatron: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.bundle"
    text.write_text("no bundle")
    cut = tmp_path / "cut.bundle"
    cut.write_bytes(megatron.read_bytes()[:-40])
    empty = tmp_path / "empty"
    empty.mkdir()
    for given, what in ((text, "no git bundle"), (cut, "no git bundle"), (empty, "no git repository")):
        said = complaint(fetch(tmp_path, "megatron", "0123abc", MEGATRON_REPO=given))
        assert f"MEGATRON_REPO={given} is {what}" in said
        assert "give a clone of NVIDIA/Megatron-LM, or a git bundle of it" in said
    said = complaint(fetch(tmp_path, "megatron", "0123abc", MEGATRON_REPO=tmp_path / "nowhere"))
    assert "nowhere is not there: give a clone" in said
    # A bundle of something else.
    git(repo, "bundle", "create", "../slime.bundle", "--all")
    assert "megatron 0123abc is not in" in complaint(
        fetch(tmp_path, "megatron", "0123abc", MEGATRON_REPO=tmp_path / "slime.bundle")
    )
    assert not [path.name for path in (tmp_path / "clones").iterdir() if path.name.startswith(".")]
    assert not list((tmp_path / "cache").iterdir())


def test_an_image_is_its_parts_in_one_folder_with_the_diff_applied(
    repo: Path, megatron: Path, tmp_path: Path
) -> None:
    # In a folder of a repository git takes paths for those of the repository, unless it is told.
    git(tmp_path, "init", "--quiet")
    line = "slime image v1 = slime v0.2.4 + megatron 0123abc + docker/it.patch + TE 2.10"
    done = image(tmp_path, line, SLIME_REPO=repo, MEGATRON_REPO=megatron)
    folder = Path(done.stdout.strip())
    assert (folder / "megatron/core/it.py").read_text() == "VALUE = 2\n", done.stderr
    assert (folder / "slime/data.py").read_text() == "VALUE = 1\n"
    # The part is as it was, nothing is asked twice, and other parts are another folder.
    assert (tmp_path / "cache/megatron-0123abc/megatron/core/it.py").read_text() == "VALUE = 1\n"
    assert image(tmp_path, line).stdout == done.stdout
    other = image(tmp_path, line.replace(" + docker/it.patch", ""), SLIME_REPO=repo)
    assert other.stdout != done.stdout


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
    done = image(tmp_path, f"slime image v1 = {line}", SLIME_REPO=repo, MEGATRON_REPO=megatron)
    assert done.returncode == 1
    assert said in done.stderr.splitlines()[-1]
    cache = tmp_path / "cache"
    assert not [path for path in (cache.iterdir() if cache.exists() else []) if "image" in path.name]
