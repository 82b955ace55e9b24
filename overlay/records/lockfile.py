"""The file of a lock: JSON that `overlay lock` writes. It is believed only if it is what its digest says.

Reading one runs nothing and follows nothing: it holds no paths, no code and no addresses.
"""

from __future__ import annotations

import json
import os

from overlay.errors import LockError
from overlay.model.whole import write_whole
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
    except FileNotFoundError:
        command = "overlay lock" if path == NAME else f"overlay lock --file {path}"
        raise LockError(f"there is no lock {path}: `{command}` writes one") from None
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
        more = _unknown(lock)
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
    if more:
        raise LockError(
            f"{path} was written by another overlay: this one does not know {', '.join(more)} in a lock; "
            "write it with `overlay lock --update`"
        )
    return lock


#: The keys of a lock, and of what is in it: a key that nobody reads would hold nobody to anything.
_KEYS = ("format", "overlay", "python", "environment", "pack", "patch", "digest")
_OVERLAY, _PACK = ("version", "content"), ("name", "distribution", "version", "content")
_PATCH = ("id", "verdict", "target")
_TARGET = ("project", "version", "verdict", "variant", "trusted", "sites")


def _unknown(lock: Lock) -> list[str]:
    """Return the keys in a lock that this overlay does not know."""
    parts = [(lock, _KEYS), (lock["overlay"], _OVERLAY), *((one, _PACK) for one in lock["pack"])]
    parts += [(one, _PATCH) for one in lock["patch"]]
    parts += [(one, _TARGET) for patch in lock["patch"] for one in patch["target"]]
    return sorted({key for part, known in parts for key in part if key not in known})


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
    write_whole(path, write(lock).encode())
