"""TOML from a file that may be anything."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class TomlError(ValueError):
    """A file that is there, and is no TOML or more than is read. The message leaves out which file."""


def read(path: str, *, largest: int = 1 << 20) -> dict[str, Any]:
    """Return the table in a file of at most so many bytes. Raises `TomlError` for another, and `OSError`."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    with open(path, "rb") as file:
        data = file.read(largest + 1)
    if len(data) > largest:
        raise TomlError(f"more than {largest} bytes")
    try:
        found: dict[str, Any] = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise TomlError(str(error) or type(error).__name__) from error
    return found
