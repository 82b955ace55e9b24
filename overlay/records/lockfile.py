"""The file of a lock: TOML that `overlay lock` writes, and that is believed only if it is whole.

Reading one runs nothing and follows nothing: it holds no paths, no code and no addresses, and whatever is in
it that this overlay does not know is an error.
"""

from __future__ import annotations

import os
import stat

from overlay.errors import LockError
from overlay.model import toml
from overlay.records.lock import FORMAT, with_digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from overlay.records.lock import Lock

#: What the file is called where nothing else is said.
NAME = "overlay.lock"
#: Far above what a lock of hundreds of patches needs: bytes, dots in a line, and any number in it.
_LARGEST, _DOTS, _GREATEST = 1 << 20, 64, 1 << 31

#: What is in a table: `str`, `int`, a table, or a list with the form of the tables in it. The key `""` stands
#: for any key; such keys are quoted in the file.
_TEXTS = {"": str}
_TARGET = {
    **dict.fromkeys(("project", "distribution", "version", "verdict", "variant", "source"), str),
    "sites": _TEXTS,
    "trusted": _TEXTS,
}
_PATCH = {"id": str, "revision": int, "content": str, "verdict": str, "target": [_TARGET]}
_PACK = dict.fromkeys(("name", "distribution", "version", "content"), str)
_FORM = {
    "format": int,
    "digest": str,
    "python": str,
    "overlay": {"version": str, "content": str},
    "option": _TEXTS,
    "environment": _TEXTS,
    "pack": [_PACK],
    "patch": [_PATCH],
}
#: Tables that a file may lack: the first is left out where it is empty, and older locks have no second.
_OPTIONAL = ("trusted", "option")

_HEAD = (
    "# Written by `overlay lock`, held by OVERLAY_PIN. Not to be edited: the digest is that of the rest.\n"
)


def read(path: str) -> Lock:
    """Return the lock in a file. Raises `LockError` if it is not one that an overlay has written."""
    try:
        data: Lock = toml.read(path, largest=_LARGEST, dots=_DOTS)
    except OSError as error:
        raise LockError(f"the lock {path} cannot be read: {error}") from error
    except toml.TomlError as error:
        raise LockError(f"{path} is damaged: {error}") from error
    number = data.get("format")
    if isinstance(number, int) and FORMAT < number < _GREATEST:
        newer = f"format {number}, this one reads {FORMAT}"
        raise LockError(f"{path} was written by a newer overlay ({newer}): upgrade overlay")
    wrong = _wrong(data, _FORM, "the file")
    if wrong:
        raise LockError(f"{path} is damaged: {wrong}")
    ids = [patch["id"] for patch in data["patch"]]
    if len(set(ids)) < len(ids) or with_digest(data)["digest"] != data["digest"]:
        raise LockError(
            f"{path} is damaged, or was edited: it is not what its digest says; write it with "
            "`overlay lock --update`"
        )
    return data


def _wrong(value: Any, form: Any, where: str) -> str:  # noqa: C901, PLR0911 -- a case for each form
    """Return what is not of a form, empty if all is. A list that was left out is put in, empty."""
    if isinstance(form, type):
        if type(value) is int and not 0 <= value < _GREATEST:
            return f"{where} is no number that a lock has"
        return "" if type(value) is form else f"{where} is not of type {form.__name__}"
    if isinstance(form, list):
        if not isinstance(value, list):
            return f"{where} is not a list of tables"
        return next(filter(None, (_wrong(item, form[0], where) for item in value)), "")
    if not isinstance(value, dict):
        return f"{where} is not a table"
    form = dict.fromkeys(value, form[""]) if "" in form else form
    for key, inner in form.items():
        if isinstance(inner, list):
            value.setdefault(key, [])
    for key in sorted({*value, *form}):
        if key not in form:
            return f"{where} has an unknown key {key!r} (was it written by a newer overlay?)"
        if key not in value and key not in _OPTIONAL:
            return f"{where} has no {key!r}"
        wrong = _wrong(value[key], form[key], key) if key in value else ""
        if wrong:
            return wrong
    return ""


def write(lock: Lock) -> str:
    """Return a lock as the text of its file."""
    whole = {"format": lock["format"], "digest": lock["digest"], **lock}
    return "\n".join([_HEAD, *_lines(whole, _FORM, ())]) + "\n"


def _lines(table: dict[str, Any], form: dict[str, Any], path: tuple[str, ...]) -> list[str]:
    """Return the lines of a table: its texts and numbers, and then the tables in it, under their paths."""
    lines = [
        f"{quoted(key) if '' in form else key} = {value if isinstance(value, int) else quoted(value)}"
        for key, value in table.items()
        if isinstance(value, (str, int))
    ]
    for key, value in table.items():
        inner = (*path, key)
        if isinstance(value, dict):
            lines += ["", f"[{'.'.join(inner)}]", *_lines(value, form.get(key, {}), inner)]
        elif isinstance(value, list):
            for item in value:
                lines += ["", f"[[{'.'.join(inner)}]]", *_lines(item, form.get(key, [{}])[0], inner)]
    return lines


def quoted(text: str) -> str:
    """Return a basic string of TOML: that of JSON, with one more character that has to be escaped."""
    import json

    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def save(path: str, lock: Lock) -> None:
    """Write a lock into a file: the whole of it, or what was there before stays. Raises `OSError`."""
    path = os.path.realpath(path)  # what a link leads to is replaced, not the link
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "w", encoding="utf-8") as file:  # a terminal, a pipe: nothing can take its place
            file.write(write(lock))
        return
    fresh = f"{path}.{os.urandom(4).hex()}.new"
    file = open(fresh, "x", encoding="utf-8")  # noqa: SIM115 -- closed below; what is there is not ours
    try:
        with file:
            file.write(write(lock))
            file.flush()
            os.fsync(file.fileno())
        if os.path.exists(path):
            os.chmod(fresh, stat.S_IMODE(os.stat(path).st_mode))
        os.replace(fresh, path)
    except BaseException:
        if os.path.exists(fresh):
            os.unlink(fresh)
        raise
