"""The file of a lock: JSON that `overlay lock` writes. It is believed only if it is what its digest says.

Reading one runs nothing and follows nothing: it holds no paths, no code and no addresses.
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress

from overlay.errors import LockError
from overlay.records.lock import FORMAT, facts, with_digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from overlay.records.lock import Lock

#: What the file is called where nothing else is said.
NAME = "overlay.lock"
_LARGEST = 1 << 20


def read(path: str) -> Lock:
    """Return the lock in a file. Raises `LockError` if it is not one that this overlay could have written."""
    try:
        if os.path.exists(path) and not os.path.isfile(path):  # a pipe would wait for somebody who writes
            raise OSError("it is no regular file")  # noqa: TRY301
        with open(path, "rb") as file:
            text = file.read(_LARGEST + 1)
    except (OSError, ValueError) as error:  # a name that no file can have
        raise LockError(f"the lock {path} cannot be read: {error}") from error
    if len(text) > _LARGEST:
        raise LockError(f"{path} is damaged: more than {_LARGEST} bytes")
    try:
        lock: Lock = json.loads(text)
        if lock["format"] != FORMAT:
            raise LockError(
                f"{path} was written by another overlay (format {lock['format']!r:.20}, this one reads "
                f"{FORMAT}): `overlay lock --update` writes it anew"
            )
        whole = with_digest(lock)["digest"] == lock["digest"]
        ids = [patch["id"] for patch in lock["patch"]]
        known = all(isinstance(patch["verdict"], str) for patch in lock["patch"])
        plain = known and _is_plain({**lock, "format": ""}) and len({*ids}) == len(ids) and bool(facts(lock))
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise LockError(
            f"{path} is damaged, or of another overlay: {type(error).__name__}: {error}; write it with "
            "`overlay lock --update`"
        ) from error
    if not plain:
        raise LockError(f"{path} is damaged: a value in it has the wrong type, or a patch is in it twice")
    if not whole:
        raise LockError(
            f"{path} is damaged, or was edited: it is not what its digest says; write it with "
            "`overlay lock --update`"
        )
    return lock


def _is_plain(value: object) -> bool:
    """Return whether a value is made of tables, lists of tables and texts, as a lock is."""
    if isinstance(value, dict):
        return all(map(_is_plain, (*value, *value.values())))
    if isinstance(value, list):
        return all(isinstance(one, dict) and _is_plain(one) for one in value)
    return isinstance(value, str) and value.isprintable()


def write(lock: Lock) -> str:
    """Return a lock as the text of its file."""
    return json.dumps(lock, indent=1) + "\n"


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
