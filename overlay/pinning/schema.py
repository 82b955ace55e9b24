"""TOML files of a known schema: how they are written, and what is wrong with one that is read.

Reading one runs nothing and follows nothing: it holds no paths, no code and no addresses, and whatever is in
it that this overlay does not know is an error.

A schema says what is in a table: `str`, `int`, a table, or a list with the schema of the tables in it. The
key `""` stands for any key; such keys are quoted in the file.
"""

from __future__ import annotations

import os
import stat

from overlay.base import toml

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: A table of texts by whatever names.
TEXTS = {"": str}
#: Tables that a file may lack: the first is left out where it is empty, and older locks have no second.
_OPTIONAL = ("trusted", "option")
#: Bytes, far above what a lock of hundreds of patches needs.
_LARGEST = 1 << 20
#: Dots in a line, far above those of a site.
_DOTS = 64
#: No number in such a file is this great, and Python refuses to print one of thousands of digits.
_GREATEST = 1 << 31


class DamagedError(ValueError):
    """A file that is not of its schema. The message goes on after the name of the file."""


class NewerError(ValueError):
    """A file that a newer overlay has written. The message goes on after the name of the file."""


def read(path: str, schema: dict[str, Any], newest: int) -> dict[str, Any]:
    """Return what is in a file; what may be left out and was is there, and empty.

    Args:
        path: Of the file.
        schema: Of what is in it, with `format` among it.
        newest: The greatest `format` that is known.

    Raises:
        OSError: It cannot be read.
        DamagedError: It is not of the schema.
        NewerError: It has a greater `format`.

    """
    try:
        data = toml.read(path, largest=_LARGEST, dots=_DOTS)
    except toml.TomlError as error:
        raise DamagedError(f"is damaged: {error}") from error
    number = data.get("format")
    if isinstance(number, int) and newest < number < _GREATEST:
        newer = f"format {number}, this one reads {newest}"
        raise NewerError(f"was written by a newer overlay ({newer}): upgrade overlay")
    wrong = _wrong(data, schema, "the file")
    if wrong:
        raise DamagedError(f"is damaged: {wrong}")
    return data


def _wrong(value: Any, schema: Any, where: str) -> str:
    """Return what is not as a schema asks for, empty if all is. What may be left out is put in, empty."""
    if isinstance(schema, type):
        if type(value) is int and not 0 <= value < _GREATEST:
            return f"{where} is no number that a lock has"
        return "" if type(value) is schema else f"{where} is not of type {schema.__name__}"
    if isinstance(schema, list):
        if not isinstance(value, list):
            return f"{where} is not a list of tables"
        return next(filter(None, (_wrong(item, schema[0], where) for item in value)), "")
    return _wrong_table(value, schema, where) if isinstance(value, dict) else f"{where} is not a table"


def _wrong_table(table: dict[str, Any], schema: dict[str, Any], where: str) -> str:
    if "" in schema:
        schema = dict.fromkeys(table, schema[""])
    for key, inner in schema.items():
        if isinstance(inner, list) or key in _OPTIONAL:
            table.setdefault(key, type(inner)())
    for key in sorted({*table, *schema}):
        if key not in schema:
            return f"{where} has an unknown key {key!r} (was it written by a newer overlay?)"
        wrong = _wrong(table[key], schema[key], key) if key in table else f"{where} has no {key!r}"
        if wrong:
            return wrong
    return ""


def write(head: str, data: dict[str, Any], schema: dict[str, Any]) -> str:
    """Return the text of a file: a comment, and what is in each table, in the order of its keys."""
    return "\n".join([head, *_lines(data, schema, ())]) + "\n"


def _lines(table: dict[str, Any], schema: dict[str, Any], path: tuple[str, ...]) -> list[str]:
    """Return the lines of a table: its texts and numbers, and then the tables in it, under their paths."""
    lines = [
        f"{quoted(key) if '' in schema else key} = {value if isinstance(value, int) else quoted(value)}"
        for key, value in table.items()
        if isinstance(value, (str, int))
    ]
    for key, value in table.items():
        inner = (*path, key)
        if isinstance(value, dict):
            lines += ["", f"[{'.'.join(inner)}]", *_lines(value, schema.get(key, {}), inner)]
        elif isinstance(value, list):
            for item in value:
                lines += ["", f"[[{'.'.join(inner)}]]", *_lines(item, schema.get(key, [{}])[0], inner)]
    return lines


def quoted(text: str) -> str:
    """Return a basic string of TOML: that of JSON, with one more character that has to be escaped."""
    import json

    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def save(path: str, text: str) -> None:
    """Write a text into a file: the whole of it, or what was there before stays. Raises `OSError`."""
    path = os.path.realpath(path)  # what a link leads to is replaced, not the link
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "w", encoding="utf-8") as file:  # a terminal, a pipe: nothing can take its place
            file.write(text)
        return
    fresh = f"{path}.{os.urandom(4).hex()}.new"
    file = open(fresh, "x", encoding="utf-8")  # noqa: SIM115 -- closed below; what is there is not ours
    try:
        with file:
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
