#!/usr/bin/env python3
"""Unpack revisions of slime into `.cache/releases/slime-<revision>/` without installing them.

    SLIME_REPO=~/slime python scripts/fetch_slime.py v0.2.4 v0.3.1

prints one folder per revision; put it first on PYTHONPATH to import that revision. slime is in no package
index: SLIME_REPO names a git repository of it on this machine, with or without a work tree. A revision that
is already there is not unpacked again.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "releases"

_REVISION = re.compile(r"v[0-9]+(\.[0-9]+)+(\.post[0-9]+)?|[0-9a-f]{7,40}")


class FetchError(RuntimeError):
    """A revision that could not be had, with what git said about it."""


def fetch(revision: str, cache: Path = CACHE) -> Path:
    """Return the folder of a tag such as `v0.2.4` or of a commit, unpacked first if it is not there yet.

    Raises:
        FetchError: it is not there, and SLIME_REPO is not set or does not have it.

    """
    if not _REVISION.fullmatch(revision):
        msg = f"{revision!r}: expected a tag such as v0.2.4, or a commit"
        raise FetchError(msg)
    folder = cache / f"slime-{revision}"
    if folder.is_dir():
        return folder
    archive = _archive(revision)
    cache.mkdir(parents=True, exist_ok=True)
    # On the same file system, so that the last step is one rename: a revision is there whole or not at all.
    with tempfile.TemporaryDirectory(dir=cache, prefix=".fetch-") as scratch:
        unpacked = Path(scratch) / "unpacked"
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(unpacked, filter="data")
        try:
            unpacked.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    return folder


def _archive(revision: str) -> bytes:
    """Return the Python files of a revision as a tar archive."""
    repo = os.environ.get("SLIME_REPO")
    if not repo:
        msg = "SLIME_REPO is not set (the git repository of slime, which is in no index)"
        raise FetchError(msg)
    # The commit, so that a branch of the same name is not taken for the tag.
    name = f"refs/tags/{revision}" if revision.startswith("v") else revision
    command = ["git", "-C", repo, "archive", "--format=tar", f"{name}^{{commit}}", "slime", "setup.py"]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        msg = f"slime {revision}: {error}"
        raise FetchError(msg) from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        msg = f"slime {revision} cannot be had from SLIME_REPO={repo}: {said}"
        raise FetchError(msg)
    return done.stdout


def main(arguments: list[str] | None = None) -> int:
    """Unpack what the command line names; exit status 1 if any of it cannot be had."""
    parser = argparse.ArgumentParser(description="Unpack revisions of slime without installing them.")
    parser.add_argument("revision", nargs="+", help="such as v0.2.4")
    options = parser.parse_args(arguments)
    return max([_report(revision) for revision in options.revision])


def _report(revision: str) -> int:
    try:
        print(fetch(revision))
    except FetchError as error:
        print(f"fetch_slime: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
