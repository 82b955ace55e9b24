"""Where the sources of upstreams that no package index has are: git repositories and bundles on this machine.

`SLIME_REPO`, `MEGATRON_REPO`, `VERL_REPO`, `MILES_REPO`, `BRIDGE_REPO` and `ROLL_REPO` each name a clone,
with or without a work tree, or a file that `git bundle` wrote, which is cloned into `.cache/sources` once. A
bundle need not have a commit itself: a branch `at-3714d81d` that holds its tree does as well.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

CLONES = Path(__file__).resolve().parents[2] / ".cache" / "sources"
#: Where what is fetched is unpacked, a folder for each release.
CACHE = CLONES.with_name("releases")

#: Seconds for one call of git.
PATIENCE = 120

_TAG = re.compile(r"v[0-9]+(\.[0-9]+)+(\.post[0-9]+)?")
_COMMIT = re.compile(r"[0-9a-f]{7,40}")


class FetchError(RuntimeError):
    """A source that could not be had: one line with what it is, and what to do."""


class Upstream(NamedTuple):
    """An upstream whose source is taken from git."""

    variable: str
    #: Whose repository it is.
    origin: str
    #: What is unpacked of it: its packages, and what says its version.
    paths: tuple[str, ...]


UPSTREAMS = {
    "slime": Upstream("SLIME_REPO", "THUDM/slime", ("slime", "slime_plugins", "setup.py")),
    "megatron": Upstream("MEGATRON_REPO", "NVIDIA/Megatron-LM", ("megatron",)),
    "verl": Upstream("VERL_REPO", "verl-project/verl", ("verl",)),
    "miles": Upstream("MILES_REPO", "radixark/miles", ("miles", "setup.py")),
    # Stacks above Megatron, which the nightly run starts.
    "bridge": Upstream("BRIDGE_REPO", "NVIDIA-NeMo/Megatron-Bridge", ("src",)),
    "roll": Upstream("ROLL_REPO", "alibaba/ROLL", ("mcore_adapter/src",)),
}


def whole(folder: Path, fill: Callable[[Path], object]) -> Path:
    """Return a folder, made first if it is not there: whole or not at all, also when two runs make it.

    Args:
        folder: Where it is to be.
        fill: Makes it, at the path that it is given, which is not there yet.

    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    # On the same file system, so that the last step is one rename.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as scratch:
        made = Path(scratch) / "made"
        fill(made)
        try:
            made.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    return folder


def git(*arguments: str) -> bytes:
    """Return what git prints. Raises `FetchError` with the first line of what it complains of."""
    command = ["git", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FetchError(f"git: {error}") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {done.returncode}"]
        raise FetchError(next((line for line in said if line.startswith("fatal: ")), said[0]))
    return done.stdout


def fetch(project: str, revision: str, cache: Path = CACHE) -> Path:
    """Return the folder of a tag such as `v0.2.4` or of a commit, unpacked first if it is not there yet.

    Raises:
        FetchError: it is not there, and the repository of the project is not given or does not have it.

    """
    check_name(project, revision)
    paths = UPSTREAMS[project].paths
    folder = cache / f"{project}-{revision}"
    return whole(folder, lambda into: unpack(archive(project, revision, *paths), into))


def repository(project: str) -> Path:
    """Return the git directory that an upstream's variable names: a clone of it, if that is a bundle.

    Raises:
        FetchError: the variable is not set, or names neither a repository nor a bundle.

    """
    variable, origin, _ = UPSTREAMS[project]
    said = os.environ.get(variable)
    if not said:
        msg = f"{variable} is not set (a clone of {origin}, or a git bundle of it)"
        raise FetchError(msg)
    path = Path(said).expanduser()
    if not path.exists():
        msg = f"{variable}={said} is not there: give a clone of {origin}, or a git bundle of it"
        raise FetchError(msg)
    try:
        if path.is_file():
            return _cloned(project, path.resolve())
        git("-C", str(path), "rev-parse", "--git-dir")
    except FetchError as error:
        kind = "git bundle" if path.is_file() else "git repository"
        msg = f"{variable}={said} is no {kind} ({error}): give a clone of {origin}, or a git bundle of it"
        raise FetchError(msg) from error
    return path


def _cloned(project: str, bundle: Path) -> Path:
    """Return a bare clone of a bundle: of what lies there now, should another have taken its place."""
    status = bundle.stat()
    key = hashlib.sha256(f"{bundle} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()[:12]
    return whole(
        CLONES / f"{project}-{key}.git",
        lambda into: git("clone", "--quiet", "--mirror", str(bundle), str(into)),
    )


def check_name(project: str, revision: str) -> None:
    """Raise `FetchError` if a text can be no revision: it names a folder, and is a word of a command."""
    if not _TAG.fullmatch(revision) and not _COMMIT.fullmatch(revision):
        msg = f"{project} {revision!r}: expected a tag such as v0.2.4, or at least 7 digits of a commit"
        raise FetchError(msg)


def commit(project: str, revision: str) -> str:
    """Return the full digits of the commit that a tag, the digits of a commit or a tree's branch stands for.

    Raises:
        FetchError: it is neither, or the repository does not have it.

    """
    check_name(project, revision)
    where = repository(project)
    # In full, so that a branch of the same name is not taken for the tag.
    wanted = [f"refs/tags/{revision}"] if _TAG.fullmatch(revision) else [revision, *_trees(where, revision)]
    found = next(filter(None, (_resolved(where, name) for name in wanted)), None)
    if found is None:
        variable, origin, _ = UPSTREAMS[project]
        msg = (
            f"{project} {revision} is not in {variable}={os.environ[variable]}: fetch it there from "
            f"{origin}, or give a repository or bundle that has it"
        )
        raise FetchError(msg)
    return found


def _resolved(where: Path, name: str) -> str | None:
    """Return the commit that a name stands for in a repository, `None` if it is not there."""
    try:
        return git("-C", str(where), "rev-parse", "--verify", f"{name}^{{commit}}").decode().strip()
    except FetchError:
        return None


def _trees(where: Path, revision: str) -> list[str]:
    """Return the branches that hold the tree of a commit: each is called after the digits of that."""
    listed = git("-C", str(where), "for-each-ref", "--format=%(refname)", "refs/heads", "refs/remotes")
    found = []
    for name in listed.decode().splitlines():
        digits = name.rpartition("/at-")[2]
        if _COMMIT.fullmatch(digits) and (digits.startswith(revision) or revision.startswith(digits)):
            found.append(name)
    return found


def archive(project: str, revision: str, *paths: str) -> bytes:
    """Return paths of a revision as a tar archive. Raises `FetchError`."""
    return _of(project, revision, "archive", "--format=tar", commit(project, revision), *paths)


def unpack(packed: bytes, folder: Path) -> None:
    """Unpack a tar archive into a folder."""
    with tarfile.open(fileobj=io.BytesIO(packed)) as files:
        files.extractall(folder, filter="data")


def show(project: str, revision: str, path: str) -> bytes:
    """Return one file of a revision. Raises `FetchError`."""
    return _of(project, revision, "show", f"{commit(project, revision)}:{path}")


def _of(project: str, revision: str, *arguments: str) -> bytes:
    """Return what git prints of a revision. Raises `FetchError` that says whose."""
    try:
        return git("-C", str(repository(project)), *arguments)
    except FetchError as error:
        msg = f"{project} {revision}, taken from {UPSTREAMS[project].variable}: {error}"
        raise FetchError(msg) from error
