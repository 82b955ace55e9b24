"""Fetches what a recipe names, unpacks it once into a cache, and lists the files that are meant."""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from glob import glob

from overlay.base.record import TYPE_CHECKING, Record
from overlay.errors import SuiteError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from overlay.suite.recipe import Excluded, Source

#: Seconds for the package index, or for a clone.
PATIENCE = 600


class Tree(Record):
    """A folder of unpacked files, and where they are from."""

    folder: str
    #: Such as `sdist verl==0.8.0`, or `VERL_REPO at v0.8.0 (commit 0123456789ab)`.
    origin: str


def cache() -> str:
    """Return the folder in which unpacked files are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "overlay", "suites")


def obtain(sources: Sequence[Source], where: str) -> Tree:
    """Return the first of several sources that can be fetched. Raises `SuiteError` with the error of each."""
    first, *rest = sources
    try:
        return _obtain(first, where)
    except SuiteError as error:
        if not rest:
            raise
        try:
            return obtain(rest, where)
        except SuiteError as other:
            raise SuiteError(f"{error}; {other}") from other


def _obtain(source: Source, where: str) -> Tree:
    if source.sdist:
        folder = os.path.join(where, f"{source.sdist}-{_key(source)}")
        _unpacked(folder, lambda into: _sdist(source, into))
        return Tree(folder=folder, origin=f"sdist {source.sdist}")
    repository = _clone(source, where) if source.git else os.environ.get(source.checkout, "")
    name = source.git or source.checkout
    if not repository:
        raise SuiteError(f"{source.checkout} is not set (a git repository or bundle on this machine)")
    if os.path.isfile(repository):
        repository = _from_bundle(repository, source.checkout, where)
    commit = _commit(repository, source.revision)
    if commit is None:
        raise SuiteError(f"{name}: {repository} has no revision {source.revision}")
    folder = os.path.join(where, f"{commit[:12]}-{_key(source)}")
    _unpacked(folder, lambda into: _archive(repository, commit, source, into))
    return Tree(folder=folder, origin=f"{name} at {source.revision} (commit {commit[:12]})")


def _key(source: Source) -> str:
    return hashlib.sha256(repr(source).encode()).hexdigest()[:12]


def _unpacked(folder: str, fill: Callable[[str], object]) -> None:
    """Make a folder, unless it is there, by one rename: whole or not at all, also when two runs make it."""
    if os.path.isdir(folder):
        return
    parent = os.path.dirname(folder)
    os.makedirs(parent, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix=".get-") as scratch:
        into = os.path.join(scratch, "tree")
        os.mkdir(into)
        fill(into)
        try:
            os.rename(into, folder)
        except OSError:
            if not os.path.isdir(folder):
                raise


def _sdist(source: Source, into: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        # Its metadata is made by running its build backend, as for any installation from an sdist.
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:"]
        _run([*command, "--dest", scratch, source.sdist], f"sdist {source.sdist}")
        found = [name for name in os.listdir(scratch) if name.endswith((".tar.gz", ".zip"))]
        if len(found) != 1 or found[0].endswith(".zip"):
            raise SuiteError(f"sdist {source.sdist}: pip brought {found or 'nothing'}, no tar archive")
        inside = os.path.join(scratch, "inside")
        with tarfile.open(os.path.join(scratch, found[0])) as archive:
            archive.extractall(inside, filter="data")
        top = os.path.join(inside, os.listdir(inside)[0])
        for name in os.listdir(top):
            if not source.paths or name in source.paths:
                shutil.move(os.path.join(top, name), os.path.join(into, name))


def _clone(source: Source, where: str) -> str:
    """Return a bare clone that has the revision."""
    folder = os.path.join(where, f"clone-{hashlib.sha256(source.git.encode()).hexdigest()[:12]}")
    _unpacked(folder, lambda into: _git(into, "init", "--bare", "--quiet"))
    if _commit(folder, source.revision) is None:
        is_commit = re.fullmatch("[0-9a-f]{7,}", source.revision)  # as short as git makes it
        wanted = source.revision if is_commit else f"refs/tags/{source.revision}"
        _git(folder, "fetch", "--quiet", "--depth=1", source.git, f"{wanted}:refs/tags/{source.revision}")
    return folder


def _from_bundle(bundle: str, name: str, where: str) -> str:
    """Return a bare clone of a git bundle, a new one if the bundle has been replaced."""
    with open(bundle, "rb") as file:
        if not file.read(16).startswith(b"# v"):
            raise SuiteError(f"{name}={bundle} is neither a git repository nor a git bundle")
    status = os.stat(bundle)
    key = f"{os.path.realpath(bundle)} {status.st_size} {status.st_mtime_ns}"
    folder = os.path.join(where, f"bundle-{hashlib.sha256(key.encode()).hexdigest()[:12]}")
    command = ["git", "clone", "--quiet", "--bare", bundle]
    _unpacked(folder, lambda into: _run([*command, into], f"{name}={bundle}"))
    return folder


def _commit(repository: str, revision: str) -> str | None:
    # A tag first, so that a branch of the same name is not taken for it.
    for name in (f"refs/tags/{revision}", revision):
        command = ["git", "-C", repository, "rev-parse", "--quiet", "--verify", f"{name}^{{commit}}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            return None
        if done.returncode == 0:
            return done.stdout.strip()
    return None


def _archive(repository: str, commit: str, source: Source, into: str) -> None:
    command = ["git", "-C", repository, "archive", "--format=tar", commit, *source.paths]
    data = _run(command, f"{source.git or source.checkout} at {source.revision}")
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(into, filter="data")


def _git(repository: str, *words: str) -> bytes:
    return _run(["git", "-C", repository, *words], f"git {words[0]}")


def _run(command: list[str], what: str) -> bytes:
    """Return the output of a command. Raises `SuiteError` with the last line of its errors."""
    environ = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE, env=environ)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SuiteError(f"{what}: {error}") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit {done.returncode}"]
        errors = [line for line in said if line.startswith(("ERROR", "fatal"))] or said
        raise SuiteError(f"{what}: {errors[-1][:300]}")
    return done.stdout


def expand(tree: str, patterns: Sequence[str]) -> list[str]:
    """Return the files that match a pattern, sorted. `**` stands for any folders, `*` for part of a name."""
    found = {name for pattern in patterns for name in glob(pattern, root_dir=tree, recursive=True)}
    return sorted(name for name in found if os.path.isfile(os.path.join(tree, name)))


def excluded(tree: str, files: Sequence[str], groups: Iterable[Excluded]) -> dict[str, str]:
    """Return which of some files are not run, and why: the reason of the first group that has the file."""
    reasons: dict[str, str] = {}
    for group in groups:
        for name in expand(tree, group.files):
            if name in files:
                reasons.setdefault(name, group.reason)
    return reasons
