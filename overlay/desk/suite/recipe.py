"""Recipes: where the tests of one release come from and how they are run, as data in a TOML file."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from importlib.resources import files

from overlay.desk.reading import record_of
from overlay.errors import SuiteError
from overlay.model.record import Record
from overlay.source.registry import COMPAT

#: Seconds for the package index or a clone.
_PATIENCE = 600
#: Stand in a command for this interpreter, and for the number of ranks.
PYTHON, RANKS = "{python}", "{ranks}"


class UnavailableError(SuiteError):
    """What a recipe names cannot be fetched here."""


class Recipe(Record):
    """How the tests of one release are fetched and run. It names a command: trust it as a script."""

    name: str
    about: str
    #: The packages under test, by their import names.
    packages: tuple[str, ...]
    #: `from`: an sdist `NAME==VERSION`, or a git repository `$VARIABLE@TAG` or `ADDRESS@TAG`, of which the
    #: first that can be had is taken. The variable has the path of a repository or bundle on this machine.
    #: `paths`: what to unpack of a repository, if not all.
    tests: dict[str, tuple[str, ...]]
    #: Where the packages under test come from, if not from where the tests do.
    code: dict[str, tuple[str, ...]] = {}  # noqa: RUF012 -- nobody changes it
    #: Patterns of the test files, where `**` stands for any folders.
    include: tuple[str, ...]
    #: Those that `--quick` runs, and by reason those that are never run.
    quick: tuple[str, ...] = ()
    exclude: dict[str, tuple[str, ...]] = {}  # noqa: RUF012
    command: tuple[str, ...] = (PYTHON, "-m", "pytest")
    #: Further arguments of pytest, and variables.
    arguments: tuple[str, ...] = ()
    variables: dict[str, str] = {}  # noqa: RUF012
    #: How many processes run one file, for commands that start ranks.
    ranks: int = 1
    #: Seconds for one file, after which it counts as hung.
    time_limit: int = 120


def shipped() -> dict[str, str]:
    """Return the paths of the recipes that come with overlay, by name."""
    folder = str(files(COMPAT).joinpath("suites"))
    names = sorted(name.removesuffix(".toml") for name in os.listdir(folder) if name.endswith(".toml"))
    return {name: os.path.join(folder, f"{name}.toml") for name in names}


def find(name: str) -> Recipe:
    """Return the recipe of a name, or that in a file `*.toml`. Raises `SuiteError`."""
    known = shipped()
    if name not in known and not name.endswith(".toml"):
        raise SuiteError(f"there is no recipe {name!r}; there are: {', '.join(known)}")
    return read(known.get(name, name))


def read(path: str) -> Recipe:
    """Return the recipe in a file. Raises `SuiteError`, which names the file, the key and the value."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        with open(path, "rb") as file:
            data = tomllib.load(file)
        name = os.path.basename(path).removesuffix(".toml")
        found: Recipe = record_of(Recipe, {**data, "name": name})
    except (OSError, TypeError, ValueError) as error:
        raise SuiteError(f"the recipe {path} cannot be read: {error}") from error
    for key in data.keys() - set(Recipe._fields):
        raise SuiteError(f"the recipe {path}: unknown key {key!r}; there are: {', '.join(Recipe._fields)}")
    for name in found.packages:
        if not name.isidentifier():  # a folder of this name is removed from what was fetched
            raise SuiteError(f"the recipe {path}: the package {name!r} is not an import name")
    for source in (found.tests, *filter(None, [found.code])):
        for text in source.get("from", [""]):
            if not text.partition("==")[2] and not text.rpartition("@")[0]:
                what = "NAME==VERSION, $VARIABLE@TAG or ADDRESS@TAG"
                raise SuiteError(f"the recipe {path}: `from` names {text!r}, which is not {what}")
    return found


def fetch(source: Mapping[str, tuple[str, ...]], into: str) -> str:
    """Unpack a source into a folder: the first that can be had of those in `from`.

    Returns:
        Where it is from: `sdist verl==0.8.0`, or `$VERL_REPO@v0.8.0 (commit 0123456789ab)`.

    Raises:
        UnavailableError: There is none. It has the error of each.

    """
    errors = []
    for text in source["from"]:
        try:
            with tempfile.TemporaryDirectory() as scratch:
                if "==" in text:
                    return _fetch_sdist(text, scratch, into)
                return _fetch_tag(text, source.get("paths", ()), scratch, into)
        except SuiteError as error:  # noqa: PERF203 -- the next one may do
            errors.append(str(error))
    raise UnavailableError("; ".join(errors))


def _fetch_sdist(text: str, scratch: str, into: str) -> str:
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:")
    _run(text, *pip, "--dest", scratch, "--", text)
    (name,) = os.listdir(scratch)
    with tarfile.open(os.path.join(scratch, name)) as archive:
        archive.extractall(scratch, filter="data")
    os.remove(os.path.join(scratch, name))
    shutil.copytree(os.path.join(scratch, *os.listdir(scratch)), into, symlinks=True, dirs_exist_ok=True)
    return f"sdist {text}"


def _fetch_tag(text: str, paths: tuple[str, ...], scratch: str, into: str) -> str:
    repository, _, tag = text.rpartition("@")
    if repository.startswith("$"):
        if not (repository := os.environ.get(repository[1:], "")):
            raise SuiteError(f"{text}: the variable is not set (a git repository or bundle on this machine)")
        repository = os.path.abspath(repository)
    git = ("git", "-C", scratch)
    _run(text, *git, "init", "--quiet", "--bare")
    # As a tag, so that a branch of the same name is not taken for it.
    _run(text, *git, "fetch", "--quiet", "--depth=1", "--", repository, f"refs/tags/{tag}")
    commit = _run(text, *git, "rev-parse", "FETCH_HEAD^{commit}").decode().strip()
    data = _run(text, *git, "archive", "--format=tar", commit, *paths)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(into, filter="data")
    return f"{text} (commit {commit[:12]})"


def _run(what: str, *command: str) -> bytes:
    """Return the output of a command. Raises `SuiteError` with the line of its errors that says most."""
    environ = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=_PATIENCE, env=environ)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SuiteError(f"{what}: {error}") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit {done.returncode}"]
        errors = [line for line in said if line.startswith(("ERROR", "fatal"))] or said
        raise SuiteError(f"{what}: {errors[-1][:300]}")
    return done.stdout
