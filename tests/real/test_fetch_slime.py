"""scripts/fetch_slime.py on a repository made here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "fetch_slime.py"


def git(repo: Path, *arguments: str) -> None:
    who = ["-c", "user.name=tests", "-c", "user.email=tests@localhost", "-c", "tag.gpgSign=false"]
    command = ["git", *who, "-C", str(repo), *arguments]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A repository with a tag v0.2.4, and a branch of that name which says something else."""
    repo = tmp_path / "repo"
    (repo / "slime").mkdir(parents=True)
    (repo / "slime" / "data.py").write_text("VALUE = 1\n")
    (repo / "setup.py").write_text("")
    git(repo, "init", "--quiet")
    git(repo, "add", ".")
    git(repo, "commit", "--quiet", "--message=one")
    git(repo, "tag", "v0.2.4")
    (repo / "slime" / "data.py").write_text("VALUE = 2\n")
    git(repo, "commit", "--quiet", "--all", "--message=two")
    git(repo, "branch", "v0.2.4")
    return repo


def fetch(repo: Path | None, tmp_path: Path, *revisions: str) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys, pathlib, fetch_slime; fetch_slime.fetch.__defaults__ = (pathlib.Path(sys.argv[1]),); "
        "sys.exit(fetch_slime.main(sys.argv[2:]))"
    )
    environment = {key: value for key, value in os.environ.items() if key != "SLIME_REPO"}
    if repo is not None:
        environment["SLIME_REPO"] = str(repo)
    return subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "cache"), *revisions],
        env=environment,
        cwd=SCRIPT.parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_tag_is_unpacked_and_the_second_run_needs_no_repository(repo: Path, tmp_path: Path) -> None:
    first = fetch(repo, tmp_path, "v0.2.4")
    folder = Path(first.stdout.strip())
    assert (folder / "slime" / "data.py").read_text() == "VALUE = 1\n", first.stderr
    assert fetch(None, tmp_path, "v0.2.4").stdout == first.stdout
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["slime-v0.2.4"]


def test_what_cannot_be_had_is_named(repo: Path, tmp_path: Path) -> None:
    done = fetch(repo, tmp_path, "v9.9.9", "main; true", "v0.2.4")
    assert done.returncode == 1
    assert f"slime v9.9.9 cannot be had from SLIME_REPO={repo}" in done.stderr
    assert "'main; true': expected a tag" in done.stderr
    assert done.stdout.strip().endswith("slime-v0.2.4")
    without = fetch(None, tmp_path, "v0.3.1")
    assert without.returncode == 1
    assert "SLIME_REPO is not set" in without.stderr
