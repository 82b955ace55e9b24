"""Recipes: where the tests of one release come from and how they are run, as data in a TOML file."""

from __future__ import annotations

import io
import os
import re
import reprlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

from overlay.base import toml
from overlay.base.record import TYPE_CHECKING, Record
from overlay.errors import SuiteError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

#: The package whose folder `suites` holds the recipes that come with overlay.
HOME = "overlay.compat"
#: Bytes of a recipe: far more than one needs.
LARGEST = 1 << 16
#: No number in a recipe is this large.
_GREATEST = 1 << 31
#: Seconds for the package index, or for a clone.
PATIENCE = 600
#: What stands in a command for this interpreter, and for the number of ranks.
PYTHON, RANKS = "{python}", "{ranks}"


class UnavailableError(SuiteError):
    """What a recipe names cannot be fetched here."""


class Source(Record):
    """Where files come from: exactly one of `sdist`, `checkout` and `git` is set."""

    #: `NAME==VERSION` in the package index.
    sdist: str = ""
    #: The environment variable that names a git repository or bundle on this machine.
    checkout: str = ""
    #: The address of a git repository.
    git: str = ""
    #: For a repository: a tag, or a commit in full.
    revision: str = ""
    #: What to unpack of a repository; empty for all.
    paths: tuple[str, ...] = ()


class Excluded(Record):
    """Files that are not run, and why."""

    files: tuple[str, ...]
    reason: str


class Recipe(Record):
    """How the tests of one release are fetched and run."""

    name: str
    about: str
    #: The packages under test, by their import names.
    packages: tuple[str, ...]
    #: Where the tests come from: the first of these that can be fetched.
    tests: tuple[Source, ...]
    #: Patterns of the test files; `**` stands for any folders.
    include: tuple[str, ...]
    exclude: tuple[Excluded, ...] = ()
    #: The files that `--quick` runs.
    quick: tuple[str, ...] = ()
    #: Where the packages under test come from, if not from where the tests do.
    code: tuple[Source, ...] = ()
    #: The distributions whose versions decide what a result is worth.
    environment: tuple[str, ...] = ()
    command: tuple[str, ...] = (PYTHON, "-m", "pytest")
    #: Further arguments for pytest.
    arguments: tuple[str, ...] = ()
    variables: dict[str, str] = {}  # noqa: RUF012 -- nobody changes it
    #: How many processes run one file, for commands that start ranks.
    ranks: int = 1
    #: Seconds for one file, after which it counts as hung.
    time_limit: int = 120


_STEP = r"(?!\.\.?(?:/|$))[^/\\]+"
_PATH = (rf"(?![~-]){_STEP}(?:/{_STEP})*", "a path inside the tree")
_TEXT = (r".+", "a text")
_SOURCE = {**dict.fromkeys(("sdist", "checkout", "git", "revision"), _TEXT), "paths": [_PATH]}
#: What each key holds: text that matches a pattern (and what to call that), a number, a list or a table of these.
_FORM: dict[str, Any] = {
    **{"about": _TEXT, "ranks": int, "time_limit": int, "variables": {"*": (r".*", "a text")}},
    **{"packages": [(r"[a-z_][a-z0-9_]*", "an import name")], "tests": [_SOURCE], "code": [_SOURCE]},
    **{"include": [_PATH], "quick": [_PATH], "exclude": [{"files": [_PATH], "reason": _TEXT}]},
    **{"environment": [_TEXT], "command": [_TEXT], "arguments": [_TEXT]},
}


def shipped() -> dict[str, str]:
    """Return the paths of the recipes that come with overlay, by name."""
    from importlib.resources import files

    folder = str(files(HOME).joinpath("suites"))
    names = sorted(name.removesuffix(".toml") for name in os.listdir(folder) if name.endswith(".toml"))
    return {name: os.path.join(folder, f"{name}.toml") for name in names}


def find(name: str) -> Recipe:
    """Return the recipe of a name, or that in a file `*.toml`. Raises `SuiteError`."""
    if name.endswith(".toml"):
        return read(name)
    known = shipped()
    if name not in known:
        raise SuiteError(f"there is no recipe {name!r}; there are: {', '.join(known)}")
    return read(known[name])


def read(path: str) -> Recipe:
    """Return the recipe in a file. Raises `SuiteError`, which names the file, the key and the value."""
    try:
        data = _checked(_FORM, toml.read(path, largest=LARGEST), "")
        for kind, key in ((Source, "tests"), (Source, "code"), (Excluded, "exclude")):
            made = enumerate(data.get(key, ()))
            data[key] = tuple(_whole(kind, table, f"{key}[{at}]") for at, table in made)
        return _whole(Recipe, {**data, "name": os.path.basename(path).removesuffix(".toml")}, "")
    except (OSError, toml.TomlError) as error:
        raise SuiteError(f"the recipe {path} cannot be read: {error}") from error
    except SuiteError as error:
        raise SuiteError(f"the recipe {path}: {error}") from error


def _checked(form: Any, value: Any, key: str) -> Any:
    """Return a value of a form, with tuples for lists. Raises `SuiteError`, which names the key and the value."""
    said = f"{key} = {_shown(value)}"
    if isinstance(form, list):
        if not isinstance(value, list):
            raise SuiteError(f"{said} is not a list")
        return tuple(_checked(form[0], item, f"{key}[{at}]") for at, item in enumerate(value))
    if isinstance(form, dict):
        if not isinstance(value, dict):
            raise SuiteError(f"{said} is not a table")
        found = {}
        for name, item in value.items():
            full = f"{key}.{name}" if key else name
            if not (name in form or ("*" in form and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,99}", name))):
                known = ", ".join(form).replace("*", "names of environment variables")
                raise SuiteError(f"unknown key {_shown(full)} = {_shown(item)}; there are: {known}")
            found[name] = _checked(form.get(name) or form["*"], item, full)
        return found
    if form is int:
        if type(value) is int and 0 < value < _GREATEST:
            return value
        raise SuiteError(f"{said} is not a whole number above 0 and below {_GREATEST}")
    pattern, words = form
    if not isinstance(value, str) or not re.fullmatch(pattern, value):
        raise SuiteError(f"{said} is not {words}")
    if not value.isprintable():
        raise SuiteError(f"{said} holds characters that do not print")
    return value


def _whole(kind: type[Record], table: dict[str, Any], key: str) -> Any:
    """Return a table as a record. Raises `SuiteError` if something is missing, or does not go together."""
    for name in kind._fields:
        if not hasattr(kind, name) and not table.get(name):
            raise SuiteError(f"{f'{key}.{name}' if key else name!r} is missing or empty")
    if kind is Source:
        if len(table.keys() & {"sdist", "checkout", "git"}) != 1:
            raise SuiteError(f"{key}: exactly one of sdist, checkout, git is needed")
        if ("sdist" in table) == ("revision" in table) or {"sdist", "paths"} <= table.keys():
            raise SuiteError(f"{key}: a repository needs a revision; an sdist has no revision and no paths")
    return kind(**table)


def _shown(value: Any) -> str:
    """Return a value for a message, cut where it is long."""
    short = reprlib.Repr()
    short.maxstring = 200
    try:
        return short.repr(value)
    except ValueError:  # Python refuses to print an integer of thousands of digits
        return "what has a number of thousands of digits"


def fetch(sources: Sequence[Source], into: str) -> str:
    """Unpack the first of several sources that can be fetched into a folder.

    Returns:
        Where it is from: `sdist verl==0.8.0`, or `VERL_REPO at v0.8.0 (commit 0123456789ab)`.

    Raises:
        UnavailableError: None can be fetched. It has the error of each.

    """
    errors = []
    for source in sources:
        try:
            with tempfile.TemporaryDirectory() as scratch:
                return (
                    _from_index(source, scratch, into) if source.sdist else _from_git(source, scratch, into)
                )
        except SuiteError as error:
            errors.append(str(error))
    raise UnavailableError("; ".join(errors))


def _from_index(source: Source, scratch: str, into: str) -> str:
    what = f"sdist {source.sdist}"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:"]
    _run(what, *pip, "--dest", scratch, source.sdist)
    names = os.listdir(scratch)
    if len(names) != 1 or not names[0].endswith(".tar.gz"):
        raise SuiteError(f"{what}: pip brought {names or 'nothing'}, no tar archive")
    with tarfile.open(os.path.join(scratch, names[0])) as archive:
        archive.extractall(scratch, filter="data")
    os.remove(os.path.join(scratch, names[0]))
    shutil.copytree(os.path.join(scratch, *os.listdir(scratch)), into, symlinks=True, dirs_exist_ok=True)
    return what


def _from_git(source: Source, scratch: str, into: str) -> str:
    name, revision = source.git or source.checkout, source.revision
    repository = source.git or os.environ.get(source.checkout, "")
    if not repository:
        raise SuiteError(f"{name} is not set (a git repository or bundle on this machine)")
    # A tag, so that a branch of the same name is not taken for it.
    wanted = revision if re.fullmatch("[0-9a-f]{40}", revision) else f"refs/tags/{revision}"
    what, git = f"{name} at {revision}", ("git", "-C", scratch)
    _run(what, *git, "init", "--quiet", "--bare")
    _run(what, *git, "fetch", "--quiet", "--depth=1", repository, wanted)
    commit = _run(what, *git, "rev-parse", "--verify", "FETCH_HEAD^{commit}").decode().strip()
    data = _run(what, *git, "archive", "--format=tar", commit, *source.paths)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(into, filter="data")
    return f"{what} (commit {commit[:12]})"


def _run(what: str, *command: str) -> bytes:
    """Return the output of a command. Raises `SuiteError` with the line of its errors that says most."""
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
