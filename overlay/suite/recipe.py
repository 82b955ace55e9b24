"""Recipes: where the tests of one release come from and how they are run, as data in a TOML file."""

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
    """Where files come from: exactly one of `sdist`, `checkout` and `git` is set."""

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
    """How the tests of one release are fetched and run."""

    name: str
    about: str
    #: The distributions that decide what is tested, and the ranges of what else has to be installed.
    environment: tuple[str, ...] = ()
    #: The packages under test, by their import names.
    packages: tuple[str, ...]
    #: Where the tests come from, in the order of trying.
    tests: tuple[Source, ...]
    #: Where the packages under test come from, if not from where the tests do.
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


_KINDS = ("sdist", "checkout", "git")
_PATH = "path"
#: What the texts of a field have to match, by its name; those of others may not be empty.
_FORMS = {
    "packages": r"[a-z_][a-z0-9_]*",
    "sdist": r"[A-Za-z0-9][A-Za-z0-9._-]*==[0-9][A-Za-z0-9.!+_-]*",
    "checkout": r"[A-Z][A-Z0-9_]*",
    "git": r"(https|ssh|file)://\S+",
    "revision": r"[A-Za-z0-9][A-Za-z0-9._/-]*",
    "variables": r".*",
    **dict.fromkeys(("paths", "include", "quick", "files"), _PATH),
}
_TABLES: dict[str, type[Record]] = {kind.__name__: kind for kind in (Source, Excluded, Known)}


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
    try:
        found: Recipe = _table(Recipe, data, "", name=os.path.basename(path).removesuffix(".toml"))
    except _WrongError as error:
        raise SuiteError(f"the recipe {path}: {error}") from error
    return found


class _WrongError(Exception):
    """What is wrong with a recipe, by key and value."""


def _table(kind: type[Record], table: Any, where: str, **given: str) -> Any:
    """Return a table as a record. Fields that are given may not stand in the table."""
    if not isinstance(table, dict):
        raise _WrongError(f"{where} = {_shown(table)} is not a table")
    found: dict[str, Any] = dict(given)
    for key, value in table.items():
        full = _key(where, key)
        if key not in kind._fields or key in given:
            from difflib import get_close_matches

            near = [f"; the nearest: {name}" for name in get_close_matches(key, kind._fields, n=1)]
            raise _WrongError(f"unknown key {_shown(full)} = {_shown(value)}{''.join(near)}")
        found[key] = _value(kind.__annotations__[key], value, full, _FORMS.get(key, ".+"))
    needed = [name for name in kind._fields if not hasattr(kind, name)]
    for name in needed:
        if not found.get(name):
            raise _WrongError(
                f"{where} = {_shown(table)}: it needs {' and '.join(needed)}"
                if where
                else f"{name!r} is missing or empty"
            )
    if kind is Source and len([one for one in _KINDS if one in found]) != 1:
        raise _WrongError(f"{where} = {_shown(table)}: exactly one of {', '.join(_KINDS)} is needed")
    if kind is Source and ("sdist" in found) == ("revision" in found):
        raise _WrongError(f"{where} = {_shown(table)}: a repository needs a revision, and an sdist has none")
    return kind(**found)


def _value(kind: str, value: Any, where: str, form: str) -> Any:
    """Return the value of a field. `kind` is its type as it is written in the record."""
    if kind.startswith("tuple["):
        if not isinstance(value, list):
            raise _WrongError(f"{where} = {_shown(value)} is not a list")
        inside = kind.removeprefix("tuple[").removesuffix(", ...]")
        return tuple(_value(inside, item, f"{where}[{at}]", form) for at, item in enumerate(value))
    if kind.startswith("dict["):
        if not isinstance(value, dict):
            raise _WrongError(f"{where} = {_shown(value)} is not a table")
        return {key: _value("str", text, _key(where, key), form) for key, text in value.items()}
    if kind in _TABLES:
        return _table(_TABLES[kind], value, where)
    if kind == "int":
        if type(value) is int and 0 < value < _GREATEST:
            return value
        raise _WrongError(f"{where} = {_shown(value)} is not a whole number above 0 and below {_GREATEST}")
    return _text(value, where, form)


def _text(value: Any, where: str, form: str) -> str:
    if not isinstance(value, str):
        raise _WrongError(f"{where} = {_shown(value)} is not a text")
    if not value.isprintable():
        raise _WrongError(f"{where} = {_shown(value)} holds characters that do not print")
    if form == _PATH:
        steps = value.split("/")
        if not value or value.startswith(("/", "~", "-")) or "\\" in value or {"", ".", ".."} & {*steps}:
            raise _WrongError(f"{where} = {_shown(value)} is not a path inside the tree")
    elif not re.fullmatch(form, value):
        raise _WrongError(f"{where} = {_shown(value)} does not match {form}")
    return value


def _key(where: str, key: str) -> str:
    """Return the full name of a key, which begins with the tables that it is in."""
    full = f"{where}.{key}" if where else key
    if not key.isprintable() or len(full) > _LONGEST_KEY:
        raise _WrongError(f"the key {_shown(full)} is too long, or holds characters that do not print")
    return full


def _shown(value: Any) -> str:
    """Return a value for a message, cut where it is long."""
    short = reprlib.Repr()
    short.maxstring = 200
    try:
        return short.repr(value)
    except ValueError:  # Python refuses to print an integer of thousands of digits
        return "what has a number of thousands of digits"
