"""TOML from a file that may be anything: bounded in its size, and in what its reader takes long for."""

from __future__ import annotations

import os
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class TomlError(ValueError):
    """A file that is there, and is no TOML or more than is read. The message leaves out which file."""


def read(path: str, *, largest: int = 1 << 20, dots: int = 1000) -> dict[str, Any]:
    """Return the table in a regular file.

    Args:
        path: Of the file.
        largest: Bytes.
        dots: In a line: the time that is taken grows with the square of the names in a dotted key.

    Raises:
        OSError: It cannot be read, or is no regular file.
        TomlError: It is no TOML, or more than that.

    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    text = _text(path, largest)
    # Not `splitlines`, which ends a line where TOML goes on with it.
    if any(line.count(".") > dots for line in text.split("\n")):
        raise TomlError(f"a line with more than {dots} dots")
    try:
        data: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise TomlError(str(error) or type(error).__name__) from error
    return data


def _text(path: str, largest: int) -> str:
    try:
        # Asked first: opening a pipe would wait for somebody who writes into it.
        regular = stat.S_ISREG(os.stat(path).st_mode)
    except ValueError as error:  # no name that a file can have
        raise OSError(str(error)) from error
    if not regular:
        raise OSError("it is no regular file")
    with open(path, "rb") as file:
        data = file.read(largest + 1)
    if len(data) > largest:
        raise TomlError(f"more than {largest} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise TomlError(str(error)) from error
