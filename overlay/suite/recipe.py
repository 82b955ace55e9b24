"""Recipes: how the tests of one release are had and run. A recipe is a TOML file, and data only."""

from __future__ import annotations

import os
import re
import reprlib

from overlay.base import toml
from overlay.base.record import TYPE_CHECKING, Record
from overlay.errors import SuiteError

if TYPE_CHECKING:
    from typing import Any

#: The package whose folder `suites` holds the recipes that come with overlay.
HOME = "overlay.compat"

#: Bytes, far above what a recipe needs.
LARGEST = 1 << 16
#: No number in a recipe is this great.
_GREATEST = 1 << 31
#: Characters: a message names it in full.
_LONGEST_KEY = 200

#: The last words of a command, and what stands for what in it.
PYTHON, RANKS = "{python}", "{ranks}"


class Source(Record):
    """Where files are had: exactly one of `sdist`, `checkout` and `git` is set."""

    #: `NAME==VERSION` in the package index.
    sdist: str = ""
    #: The environment variable that names a git repository on this machine.
    checkout: str = ""
    #: The address of a git repository.
    git: str = ""
    #: For a repository: a tag or a commit.
    revision: str = ""
    #: What of it to unpack; empty for all.
    paths: tuple[str, ...] = ()


class Excluded(Record):
    """Files that are not run, and why."""

    files: tuple[str, ...]
    reason: str


class Known(Record):
    """Tests that are known to fail, or to be lost, and why: what is lost counts as lost all the same."""

    #: A pattern of node ids, with `*`.
    test: str
    reason: str


class Recipe(Record):
    """How the tests of one release are had and run."""

    name: str
    about: str
    #: The distributions that decide what is tested, and the ranges of what else has to be installed.
    environment: tuple[str, ...] = ()
    #: The packages under test, by their import names.
    packages: tuple[str, ...]
    #: Where the tests are had, in the order of trying.
    tests: tuple[Source, ...]
    #: Where the packages under test are had, if not from where the tests are.
    code: tuple[Source, ...] = ()
    command: tuple[str, ...] = (PYTHON, "-m", "pytest")
    #: Further arguments for pytest.
    arguments: tuple[str, ...] = ()
    variables: dict[str, str] = {}  # noqa: RUF012 -- a record is immutable, and so is its default by agreement
    include: tuple[str, ...]
    exclude: tuple[Excluded, ...] = ()
    #: The files that `--quick` runs.
    quick: tuple[str, ...] = ()
    #: How many processes run one file, for commands that start ranks.
    ranks: int = 1
    #: Seconds for one file, after which it counts as hung.
    time_limit: int = 120
    #: Seconds that both runs took on two cores, two files at once; 0 if that was not measured.
    seconds: int = 0
    known: tuple[Known, ...] = ()


_PATH = "path"
_SOURCE = {
    "sdist": r"[A-Za-z0-9][A-Za-z0-9._-]*==[0-9][A-Za-z0-9.!+_-]*",
    "checkout": r"[A-Z][A-Z0-9_]*",
    "git": r"(https|ssh|file)://\S+",
    "revision": r"[A-Za-z0-9][A-Za-z0-9._/-]*",
    "paths": [_PATH],
}
#: The form of a recipe: a regular expression for a text, of which none holds characters that do not print,
#: `int` for a whole number above zero, a list for a list, a dictionary for a table.
_FORM: dict[str, Any] = {
    "about": r".+",
    "packages": [r"[a-z_][a-z0-9_]*"],
    "tests": [_SOURCE],
    "include": [_PATH],
    "environment": [r".+"],
    "code": [_SOURCE],
    "command": [r".+"],
    "arguments": [r".+"],
    "variables": {"": r".*"},
    "exclude": [{"files": [_PATH], "reason": r".+"}],
    "quick": [_PATH],
    "ranks": int,
    "time_limit": int,
    "seconds": int,
    "known": [{"test": r".+", "reason": r".+"}],
}
_NEEDED = ("about", "packages", "tests", "include")
_KINDS = ("sdist", "checkout", "git")


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
        from overlay.base.settings import nearest

        raise SuiteError(f"there is no recipe {name!r}; {nearest(name, sorted(known))}")
    return read(known[name])


def read(path: str) -> Recipe:
    """Return the recipe in a file. Raises `SuiteError`, which names the file, the key and the value."""
    try:
        data = toml.read(path, largest=LARGEST)
    except (OSError, toml.TomlError) as error:
        raise SuiteError(f"the recipe {path} cannot be read: {error}") from error
    wrong = _wrong_table(data, _FORM, "") or _missing(data)
    if wrong:
        raise SuiteError(f"the recipe {path}: {wrong}")
    name = os.path.basename(path).removesuffix(".toml")
    made = _tuples(data)
    for key, kind in (("tests", Source), ("code", Source), ("exclude", Excluded), ("known", Known)):
        made[key] = tuple(kind(**_tuples(table)) for table in data.get(key, ()))
    return Recipe(name=name, **made)


def _tuples(table: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}


def _missing(data: dict[str, Any]) -> str:
    for key in _NEEDED:
        if not data.get(key):
            return f"{key!r} is missing or empty"
    for key in ("tests", "code"):
        for number, source in enumerate(data.get(key, ())):
            where = f"{key}[{number}] = {_shown(source)}"
            if len([kind for kind in _KINDS if kind in source]) != 1:
                return f"{where}: exactly one of {', '.join(_KINDS)} is needed"
            if ("sdist" in source) == ("revision" in source):
                return f"{where}: a repository needs a revision, and an sdist has none"
    for key, what in (("exclude", "files"), ("known", "test")):
        for number, table in enumerate(data.get(key, ())):
            if set(table) != {what, "reason"}:
                return f"{key}[{number}] = {_shown(table)}: it needs {what} and reason"
    return ""


def _wrong_table(table: dict[str, Any], form: dict[str, Any], where: str) -> str:
    """Return what is wrong with a table, by key and value, empty if nothing is."""
    for key, value in table.items():
        full = f"{where}{key}"
        if not key.isprintable() or len(full) > _LONGEST_KEY:
            return f"the key {_shown(full)} is too long, or holds characters that do not print"
        if key not in form and "" not in form:
            from difflib import get_close_matches

            near = [f"; the nearest: {name}" for name in get_close_matches(key, form, n=1)]
            return f"unknown key {_shown(full)} = {_shown(value)}{''.join(near)}"
        wrong = _wrong(value, form.get(key, form.get("")), full)
        if wrong:
            return wrong
    return ""


def _wrong(value: Any, form: Any, where: str) -> str:  # noqa: PLR0911 -- one for each thing that can be wrong
    if isinstance(form, dict):
        if not isinstance(value, dict):
            return f"{where} = {_shown(value)} is not a table"
        return _wrong_table(value, form, f"{where}.")
    if isinstance(form, list):
        if not isinstance(value, list):
            return f"{where} = {_shown(value)} is not a list"
        found = (_wrong(item, form[0], f"{where}[{number}]") for number, item in enumerate(value))
        return next(filter(None, found), "")
    if form is int:
        right = type(value) is int and 0 < value < _GREATEST
        return (
            "" if right else f"{where} = {_shown(value)} is not a whole number above 0 and below {_GREATEST}"
        )
    if not isinstance(value, str):
        return f"{where} = {_shown(value)} is not a text"
    if not value.isprintable():
        return f"{where} = {_shown(value)} holds characters that do not print"
    if form == _PATH:
        return _wrong_path(value, where)
    return "" if re.fullmatch(form, value) else f"{where} = {_shown(value)} does not match {form}"


def _wrong_path(value: str, where: str) -> str:
    steps = value.split("/")
    if not value or value.startswith(("/", "~", "-")) or "\\" in value or {"", ".", ".."} & {*steps}:
        return f"{where} = {_shown(value)} is not a path inside the tree"
    return ""


def _shown(value: Any) -> str:
    """Return a value for a message, cut where it is long."""
    short = reprlib.Repr()
    short.maxstring = 200
    try:
        return short.repr(value)
    except ValueError:  # Python refuses to print an integer of thousands of digits
        return "what has a number of thousands of digits"
