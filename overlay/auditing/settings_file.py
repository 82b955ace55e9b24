"""The settings of a job, as they stand in a file: flags, overrides `a.b=c`, or YAML.

A shell script is read and never run. What it assigns as a literal is filled in; what only the shell knows
stays as it is written, and nothing is concluded from it.
"""

from __future__ import annotations

import os
import re
import shlex
from contextlib import suppress

from overlay.base.record import TYPE_CHECKING
from overlay.errors import SettingsError

if TYPE_CHECKING:
    from typing import Any

_FLAG = re.compile(r"--([A-Za-z][\w.-]*)(=(.*))?$", re.DOTALL)
_OVERRIDE = re.compile(
    r"\+{0,2}((?:[A-Za-z_]\w*\.)+\w+|[a-z]\w*@\w[\w.]*|(?:model_)?engine)=(.*)$", re.DOTALL
)
_ASSIGNED = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=([\w./:,+-]*)\s*$")
_NAMED = re.compile(r"^\s*([A-Za-z_]\w*)\+?=\(", re.MULTILINE)
_ARRAY = re.compile(r"^\s*[A-Za-z_]\w*\+?=\(")
_SOURCED = re.compile(r"\s*(?:source|\.)\s+(\S+)")
_SPREAD = re.compile(r"\$\{(\w+)\[[@*]\]\}")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
#: Characters of a file, and settings in it: beyond them it is none of a job.
_MOST_TEXT, _MOST_SETTINGS = 4 << 20, 20_000
_WORDS = {"true": True, "false": False, "null": None, "none": None, "~": None}


class Open(str):
    """A value that the file does not tell, as it is written there."""

    __slots__ = ()


def read(path: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the settings in a file by key, and what it takes from elsewhere, where there may be more.

    What a script sources beside itself is read too. Raises `SettingsError`.
    """
    text = _text(path)
    if path.endswith((".yaml", ".yml")):
        found = in_yaml(text, path)
        composed = [key for key in found if key == "defaults" or key.startswith("defaults.")]
        elsewhere = ["its list of defaults"] if composed else []
        found = {key: one for key, one in found.items() if key not in composed}
    else:
        whole, elsewhere = _with_sourced(text, path)
        found = words(whole)
        arrays = set(_NAMED.findall(whole))
        elsewhere += [
            f"${{{name}[@]}}" for name in dict.fromkeys(_SPREAD.findall(whole)) if name not in arrays
        ]
    if not found:
        raise SettingsError(f"there are no settings in {path}: no --flag, no a.b=c, no YAML")
    return found, tuple(elsewhere)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8-sig") as file:  # editors of Windows put a mark before the text
            text = file.read(_MOST_TEXT + 1)
    except (OSError, ValueError) as error:
        raise SettingsError(f"the settings in {path} cannot be read: {error}") from error
    if len(text) > _MOST_TEXT:
        raise SettingsError(f"{path} has more than {_MOST_TEXT} characters: these are no settings of a job")
    return text


def _with_sourced(text: str, path: str) -> tuple[str, list[str]]:
    """Return a script with what it sources in the place of that, and what of it cannot be found."""
    lines, missing = [], []
    for line in text.splitlines():
        sourced = _SOURCED.match(line)
        if sourced is None:
            lines.append(line)
            continue
        # The folder is a variable, and nearly always that of the script.
        name = re.sub(r"^\$(\{\w+\}|\w+)/", "", sourced[1].strip("\"'"))
        beside = os.path.join(os.path.dirname(path), name)
        if "$" not in name and os.path.isfile(beside):
            lines.append(_text(beside))
        else:
            missing.append(sourced[1].strip("\"'"))
    return "\n".join(lines), missing


def words(text: str) -> dict[str, Any]:
    """Return the flags and the overrides in a text: a command line, a script, or one on each line."""
    known: dict[str, str] = {}
    found: dict[str, Any] = {}
    flag, in_array = "", False
    for line in text.splitlines():
        assigned = _ASSIGNED.match(line.strip())
        if assigned and "." not in assigned[1]:
            known[assigned[1]] = assigned[2]
            continue
        in_array = in_array or bool(_ARRAY.match(line))
        parts, closed = _split(_ARRAY.sub("", line.rstrip().removesuffix("\\")))
        for word in parts:
            flag = _take(_filled(word, known), flag, found)
        in_array = in_array and not closed
        # What stands in the next line belongs to a flag only where the command goes on.
        flag = flag if in_array or line.endswith("\\") else ""
    return {key: _joined(value) for key, value in found.items()}


def _take(word: str, flag: str, found: dict[str, Any]) -> str:
    """Put one word where it belongs, and return the flag that the next one may be a value of."""
    if _SPREAD.fullmatch(word) or word in ("$@", "$*"):
        return ""
    option, override = _FLAG.match(word), _OVERRIDE.match(word)
    if option:
        flag = option[1].replace("-", "_")
        found[flag] = [] if option[2] is None else [value(option[3])]
        return flag if option[2] is None else ""
    if override:
        found[override[1]] = [value(override[2])]
        return ""
    if flag and word not in ("&", "&&", "|", ";", ")"):
        found[flag].append(value(word))
        return flag
    return ""


def _split(line: str) -> tuple[list[str], bool]:
    """Return the words of a line, and whether an array ends in it."""
    try:
        found = shlex.split(line, comments=True)
    except ValueError:  # a quotation that goes on in the next line
        found = line.partition("#")[0].split()
    ends = bool(found) and found[-1].endswith(")") and "(" not in found[-1]
    return ([*found[:-1], found[-1][:-1]] if ends else found), ends


def _filled(word: str, known: dict[str, str]) -> str:
    return _VARIABLE.sub(lambda match: known.get(match[1] or match[2], match[0]), word)


def _joined(values: list[Any]) -> Any:
    """Return what a flag was given: a switch nothing, one value itself, several a tuple."""
    values = [one for one in values if one != ""]
    return True if not values else values[0] if len(values) == 1 else tuple(values)


def value(text: str) -> Any:
    """Return what a text stands for: a number, a switch, nothing, or itself."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    if "$" in text or "`" in text:
        return Open(text)
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    with suppress(ValueError):
        return int(text)
    with suppress(ValueError):
        return float(text)
    in_brackets = text[:1] == "[" and text[-1:] == "]"
    return tuple(value(part) for part in text[1:-1].split(",") if part.strip()) if in_brackets else text


def in_yaml(text: str, path: str) -> dict[str, Any]:
    """Return what a YAML has, by the paths of its keys. Raises `SettingsError`."""
    try:
        import yaml
    except ImportError as error:
        raise SettingsError(f"to read {path}, the package PyYAML is needed: pip install pyyaml") from error
    found: dict[str, Any] = {}
    try:
        # A number or a date that Python cannot hold is a `ValueError`.
        _flatten(yaml.safe_load(text), "", found)
    except RecursionError as error:
        raise SettingsError(f"{path} is nested too deeply, or holds itself") from error
    except OverflowError as error:
        raise SettingsError(f"{path} has more than {_MOST_SETTINGS} settings: not those of a job") from error
    except (yaml.YAMLError, ValueError) as error:
        raise SettingsError(f"{path} is no YAML: {error}") from error
    return {key: _interpolated(one, found) for key, one in found.items()}


def _flatten(data: Any, path: str, found: dict[str, Any]) -> None:
    """Put what a YAML has into `found`, by the paths of its keys. Aliases can make very much of little."""
    if len(found) > _MOST_SETTINGS:
        raise OverflowError
    if isinstance(data, dict) and data:
        for key, inner in data.items():
            name = str(key).removeprefix("--").replace("-", "_")
            _flatten(inner, f"{path}.{name}" if path else name, found)
    elif (
        isinstance(data, list) and path and all(isinstance(one, str) and "=" in one for one in data) and data
    ):
        # Overrides, as Hydra writes them beside its configurations.
        for one in data:
            found.update(words(one))
    elif isinstance(data, list) and not path:
        for one in data:
            found.update(words(str(one)))
    elif path:
        found[path] = (
            value(data) if isinstance(data, str) else _items(data) if isinstance(data, list) else data
        )


def _items(data: list[Any]) -> tuple[Any, ...]:
    """Return the values of a list. What is nested in it no condition asks for."""
    return tuple(Open("...") if isinstance(one, (list, dict)) else one for one in data)


def _interpolated(one: Any, found: dict[str, Any], depth: int = 8) -> Any:
    """Return what `${a.b}` stands for, if that is all that is written and the file has it."""
    if not isinstance(one, Open) or not depth:
        return one
    inner = re.fullmatch(r"\$\{(?:oc\.select:)?([\w.]+)(?:,([^{}]*))?\}", one)
    if inner is None:
        return one
    if inner[1] in found:
        return _interpolated(found[inner[1]], found, depth - 1)
    return one if inner[2] is None else value(inner[2])
