"""The file of a lock: TOML that `overlay lock` writes, and that is believed only if it is whole.

Reading it runs nothing and follows nothing: it holds no paths, no code and no addresses, and whatever is in
it that this overlay does not know is an error.
"""

from __future__ import annotations

import os
import stat

from overlay.base import toml
from overlay.errors import LockError
from overlay.pinning.lock import FORMAT, with_digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from overlay.pinning.lock import Lock

#: What the file is called where nothing else is said.
NAME = "overlay.lock"
#: Bytes, far above what a lock of hundreds of patches needs.
LARGEST = 1 << 20
#: Dots in a line, far above those of a site.
_DOTS = 64
#: No number in a lock is this great, and Python refuses to print one of thousands of digits.
_GREATEST = 1 << 31

_TEXT = str
_TABLE = {"": _TEXT}
#: The form of the file: the keys of each table. `""` stands for any key.
_SITES = _TABLE
_TARGET = {
    **dict.fromkeys(("project", "distribution", "version", "verdict", "variant", "source"), _TEXT),
    "sites": _SITES,
    "trusted": _SITES,
}
_PATCH = {"id": _TEXT, "revision": int, "content": _TEXT, "verdict": _TEXT, "target": [_TARGET]}
_PACK = dict.fromkeys(("name", "distribution", "version", "content"), _TEXT)
_FORM = {
    "format": int,
    "digest": _TEXT,
    "python": _TEXT,
    "overlay": {"version": _TEXT, "content": _TEXT},
    "environment": _TABLE,
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
    save_text(path, write(lock))


def save_text(path: str, text: str) -> None:
    """Write a text into a file: the whole of it, or what was there before stays. Raises `OSError`."""
    path = os.path.realpath(path)  # what a link leads to is replaced, not the link
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "w", encoding="utf-8") as file:  # a terminal, a pipe: nothing can take its place
            file.write(text)
        return
    fresh = f"{path}.{os.getpid()}.new"
    try:
        with open(fresh, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if os.path.exists(path):
            os.chmod(fresh, stat.S_IMODE(os.stat(path).st_mode))
        os.replace(fresh, path)
    except BaseException:
        if os.path.exists(fresh):
            os.unlink(fresh)
        raise


def write(lock: Lock) -> str:
    """Return a lock as the text of its file."""
    lines = [_HEAD, f"format = {lock['format']}", f"digest = {quoted(lock['digest'])}"]
    lines += [f"python = {quoted(lock['python'])}", "", "[overlay]"]
    lines += [f"{key} = {quoted(value)}" for key, value in lock["overlay"].items()]
    lines += ["", "[environment]"]
    lines += [f"{quoted(key)} = {quoted(value)}" for key, value in lock["environment"].items()]
    for pack in lock["pack"]:
        lines += ["", "[[pack]]", *_pairs(pack)]
    for patch in lock["patch"]:
        lines += ["", "[[patch]]", *_pairs(patch)]
        for target in patch["target"]:
            lines += ["", "[[patch.target]]", *_pairs(target), "", "[patch.target.sites]"]
            lines += [f"{quoted(site)} = {quoted(digest)}" for site, digest in target["sites"].items()]
            if target.get("trusted"):
                lines += ["", "[patch.target.trusted]"]
                lines += [f"{quoted(site)} = {quoted(value)}" for site, value in target["trusted"].items()]
    return "\n".join(lines) + "\n"


def _pairs(table: dict[str, Any]) -> list[str]:
    plain = {key: value for key, value in table.items() if isinstance(value, (str, int))}
    return [f"{key} = {value if isinstance(value, int) else quoted(value)}" for key, value in plain.items()]


def quoted(text: str) -> str:
    """Return a basic string of TOML: that of JSON, with one more character that has to be escaped."""
    import json

    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def read(path: str) -> Lock:
    """Return the lock in a file. Raises `LockError` if it is not one that an overlay has written."""
    try:
        data: Lock = toml.read(path, largest=LARGEST, dots=_DOTS)
    except OSError as error:
        raise LockError(f"the lock {path} cannot be read: {error}") from error
    except toml.TomlError as error:
        raise LockError(f"{path} is damaged: {error}") from error
    number = data.get("format")
    if isinstance(number, int) and FORMAT < number < _GREATEST:
        newer = f"format {number}, this one reads {FORMAT}"
        raise LockError(f"{path} was written by a newer overlay ({newer}): upgrade overlay")
    _fill(data)
    wrong = wrong_form(data, _FORM, "the file")
    if wrong:
        raise LockError(f"{path} is damaged: {wrong}")
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


def _fill(data: Lock) -> None:
    """Give what may be left out of a file its empty value, if the file is of the form as far as that goes."""
    data.setdefault("pack", [])
    data.setdefault("patch", [])
    for patch in tables_in(data["patch"]):
        patch.setdefault("target", [])
        for target in tables_in(patch["target"]):
            target.setdefault("trusted", {})


def tables_in(value: Any) -> list[dict[str, Any]]:
    """Return the tables of what should be a list of them."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def wrong_form(value: Any, form: Any, where: str) -> str:  # noqa: PLR0911 -- one for each thing that can be wrong
    """Return what is not as a form asks for, empty if all is."""
    if isinstance(form, type):
        if type(value) is int and not 0 <= value < _GREATEST:
            return f"{where} is no number that a lock has"
        return "" if type(value) is form else f"{where} is not of type {form.__name__}"
    if isinstance(form, list):
        if not isinstance(value, list):
            return f"{where} is not a list of tables"
        return next(filter(None, (wrong_form(item, form[0], where) for item in value)), "")
    if not isinstance(value, dict):
        return f"{where} is not a table"
    if "" in form:
        form = dict.fromkeys(value, form[""])
    for key in sorted({*value, *form}):
        if key not in form:
            return f"{where} has an unknown key {key!r} (was it written by a newer overlay?)"
        wrong = wrong_form(value[key], form[key], key) if key in value else f"{where} has no {key!r}"
        if wrong:
            return wrong
    return ""
