"""The list of packages in a `pyproject.toml`: what is not on it is in no wheel."""

from __future__ import annotations

import re

from overlay.base import toml

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: A line of the list, one package on each.
_LINE = re.compile(r'^( +)"([A-Za-z_][\w.]*)",$')


def is_listed(file: str, package: str) -> bool:
    """Return whether a package is listed, or packages are found without a list; false without the file."""
    try:
        found: Any = toml.read(file)
    except (OSError, toml.TomlError):
        return False
    for name in ("tool", "setuptools", "packages"):
        found = found.get(name) if isinstance(found, dict) else None
    return package in found if isinstance(found, list) else True


def add(file: str, package: str, *, write: bool) -> bool:
    """List a package below the last one that comes before it, and return whether it is listed now.

    A list that has not a line for each package is a person's to write, and so is any if not `write`. Raises
    `OSError` if the file cannot be written.
    """
    if is_listed(file, package):
        return True
    try:
        with open(file, encoding="utf-8") as stream:
            lines = stream.read().split("\n")
    except OSError:
        return False
    above = package.rpartition(".")[0].rpartition(".")[0]
    before = [
        (number, match)
        for number, line in enumerate(lines)
        if (match := _LINE.match(line)) and match[2].startswith(above) and match[2] < package
    ]
    if not write or not before:
        return False
    number, match = before[-1]
    # Its own package first, which holds the patches of one project, where that is new.
    project = package.rpartition(".")[0]
    names = [name for name in (project, package) if not is_listed(file, name)]
    lines[number + 1 : number + 1] = [f'{match[1]}"{name}",' for name in names]
    with open(file, "w", encoding="utf-8") as stream:
        stream.write("\n".join(lines))
    return is_listed(file, package)
