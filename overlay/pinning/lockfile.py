"""The file of a lock: TOML that `overlay lock` writes, and that is believed only if it is whole."""

from __future__ import annotations

from overlay.errors import LockError
from overlay.pinning import schema
from overlay.pinning.lock import FORMAT, with_digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from overlay.pinning.lock import Lock

#: What the file is called where nothing else is said.
NAME = "overlay.lock"

_TARGET = {
    **dict.fromkeys(("project", "distribution", "version", "verdict", "variant", "source"), str),
    "sites": schema.TEXTS,
    "trusted": schema.TEXTS,
}
_PATCH = {"id": str, "revision": int, "content": str, "verdict": str, "target": [_TARGET]}
_PACK = dict.fromkeys(("name", "distribution", "version", "content"), str)
_SCHEMA = {
    "format": int,
    "digest": str,
    "python": str,
    "overlay": {"version": str, "content": str},
    "option": schema.TEXTS,
    "environment": schema.TEXTS,
    "pack": [_PACK],
    "patch": [_PATCH],
}

_HEAD = (
    "# Written by `overlay lock`, held by OVERLAY_PIN. Not to be edited: the digest is that of the rest.\n"
)


def save(path: str, lock: Lock) -> None:
    """Write a lock into a file: the whole of it, or what was there before stays.

    Raises `OSError`, on a full disk for one.
    """
    schema.save(path, write(lock))


def write(lock: Lock) -> str:
    """Return a lock as the text of its file."""
    return schema.write(_HEAD, {"format": lock["format"], "digest": lock["digest"], **lock}, _SCHEMA)


def read(path: str) -> Lock:
    """Return the lock in a file. Raises `LockError` if it is not one that an overlay has written."""
    try:
        data: Lock = schema.read(path, _SCHEMA, FORMAT)
    except OSError as error:
        raise LockError(f"the lock {path} cannot be read: {error}") from error
    except (schema.DamagedError, schema.NewerError) as error:
        raise LockError(f"{path} {error}") from error
    for target in (target for patch in data["patch"] for target in patch["target"]):
        if not target["trusted"]:
            del target["trusted"]  # as it is made
    ids = [patch["id"] for patch in data["patch"]]
    if len(set(ids)) < len(ids) or with_digest(data)["digest"] != data["digest"]:
        raise LockError(
            f"{path} is damaged, or was edited: it is not what its digest says; write it with "
            "`overlay lock --update`"
        )
    return data
