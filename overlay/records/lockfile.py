"""The file of a lock: TOML that `overlay lock` writes. It is believed only if it is what its digest says.

Reading one runs nothing and follows nothing: it holds no paths, no code and no addresses.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress

from overlay.errors import LockError
from overlay.model import toml
from overlay.records.lock import FORMAT, facts, with_digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from overlay.records.lock import Lock

#: What the file is called where nothing else is said.
NAME = "overlay.lock"
#: Tables whose keys are names of other things.
_NAMES = ("sites", "trusted", "environment")
_HEAD = (
    "# Written by `overlay lock`, held by OVERLAY_PIN. Not to be edited: the digest is that of the rest.\n"
)


def read(path: str) -> Lock:
    """Return the lock in a file. Raises `LockError` if it is not one that an overlay has written."""
    try:
        data: Lock = toml.read(path)
        number = data["format"]
        if number > FORMAT:
            newer = f"format {number}, this one reads {FORMAT}"
            raise LockError(f"{path} was written by a newer overlay ({newer}): upgrade overlay")
        # A list without entries is left out of the file.
        data = {**data, "pack": data.get("pack", []), "patch": data.get("patch", [])}
        for patch in data["patch"]:
            patch.setdefault("target", [])
        known = len({patch["id"] for patch in data["patch"]}) == len(data["patch"])
        # What a newer overlay has added counts for its digest, and not for ours.
        whole = known and with_digest(data)["digest"] == data["digest"]
        plain = _is_plain(data) and all(isinstance(value, str) for value in facts(data).values())
    except toml.TomlError as error:
        raise LockError(f"{path} is damaged: {error}") from error
    except (OSError, ValueError) as error:  # a name that no file can have
        raise LockError(f"the lock {path} cannot be read: {error}") from error
    except (LookupError, TypeError, AttributeError) as error:
        raise LockError(f"{path} is damaged: {type(error).__name__}: {error}") from error
    if not plain:
        raise LockError(f"{path} is damaged: a value in it has the wrong type")
    if not whole:
        raise LockError(
            f"{path} is damaged, or was edited: it is not what its digest says; write it with "
            "`overlay lock --update`"
        )
    return data


def _is_plain(value: object) -> bool:
    """Return whether a value is made of what `write` writes: tables, lists of tables, texts and numbers."""
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list):
        return all(isinstance(one, dict) and _is_plain(one) for one in value)
    return isinstance(value, str) or (type(value) is int and abs(value) < 1 << 63)


def write(lock: Lock) -> str:
    """Return a lock as the text of its file."""
    whole = {"format": lock["format"], "digest": lock["digest"], **lock}
    return "\n".join([_HEAD, *_lines(whole, ())]) + "\n"


def _lines(table: dict[str, Any], path: tuple[str, ...]) -> list[str]:
    """Return the lines of a table: its texts and numbers, and then the tables in it, under their paths."""
    named = bool(path) and path[-1] in _NAMES
    lines = [
        f"{quoted(key) if named else key} = {value if isinstance(value, int) else quoted(value)}"
        for key, value in table.items()
        if isinstance(value, (str, int))
    ]
    for key, value in table.items():
        inner = (*path, key)
        if isinstance(value, dict):
            lines += ["", f"[{'.'.join(inner)}]", *_lines(value, inner)]
        elif isinstance(value, list):
            for item in value:
                lines += ["", f"[[{'.'.join(inner)}]]", *_lines(item, inner)]
    return lines


def quoted(text: str) -> str:
    """Return a basic string of TOML: that of JSON, with one more character that has to be escaped."""
    import json

    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def save(path: str, lock: Lock) -> None:
    """Write a lock into a file: the whole of it, or what was there before stays. Raises `OSError`."""
    path = os.path.realpath(path)  # what a link leads to is replaced, not the link
    special = os.path.exists(path) and not os.path.isfile(path)  # a terminal, a pipe: nothing takes its place
    fresh = path if special else f"{path}.new"
    try:
        with open(fresh, "w", encoding="utf-8") as file:
            file.write(write(lock))
        if not special and os.path.exists(path):
            shutil.copymode(path, fresh)
        if not special:
            os.replace(fresh, path)
    finally:
        if not special:
            with suppress(FileNotFoundError):
                os.unlink(fresh)
