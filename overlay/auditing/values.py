"""The settings of a job, as they stand in a file: flags, overrides `a.b=c`, or YAML.

A shell script is read and never run. What it assigns as a literal is filled in; what only the shell knows
stays as it is written, and nothing is concluded from it.
"""

from __future__ import annotations

import re
import shlex
from contextlib import suppress

from overlay.base.record import TYPE_CHECKING
from overlay.errors import SettingsError

if TYPE_CHECKING:
    from typing import Any

_FLAG = re.compile(r"--([A-Za-z][\w.-]*)(=(.*))?$", re.DOTALL)
_OVERRIDE = re.compile(r"\+{0,2}((?:[A-Za-z_]\w*\.)+\w+|[a-z]\w*@\w[\w.]*)=(.*)$", re.DOTALL)
_ASSIGNED = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=([\w./:,+-]*)\s*$")
_ARRAY = re.compile(r"^\s*[A-Za-z_]\w*\+?=\(")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


class Open(str):
    """A value that the file does not tell, as it is written there."""

    __slots__ = ()


def read(path: str) -> dict[str, Any]:
    """Return the settings in a file, by key. Raises `SettingsError`."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, ValueError) as error:
        raise SettingsError(f"the settings in {path} cannot be read: {error}") from error
    found = in_yaml(text, path) if path.endswith((".yaml", ".yml")) else words(text)
    if not found:
        raise SettingsError(f"there are no settings in {path}: no --flag, no a.b=c, no YAML")
    return found


def words(text: str) -> dict[str, Any]:
    """Return the flags and the overrides in a text: a command line, a script, or one on each line."""
    known: dict[str, str] = {}
    found: dict[str, Any] = {}
    flag = ""
    for line in text.replace("\\\n", " \n").splitlines():
        assigned = _ASSIGNED.match(line.strip())
        if assigned and not line.lstrip().startswith("-"):
            known[assigned[1]] = assigned[2]
            if "." not in assigned[1]:
                continue
        for word in _split(_ARRAY.sub("", line)):
            flag = _take(_filled(word, known), flag, found)
    return {key: _joined(value) for key, value in found.items()}


def _take(word: str, flag: str, found: dict[str, Any]) -> str:
    """Put one word where it belongs, and return the flag that the next one may be a value of."""
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


def _split(line: str) -> list[str]:
    try:
        found = shlex.split(line, comments=True)
    except ValueError:  # a quotation that goes on in the next line
        found = line.partition("#")[0].split()
    return [word[:-1] if word.endswith(")") and "(" not in word else word for word in found]


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
    low = text.lower()
    if low in ("true", "false"):
        return low == "true"
    if low in ("null", "none", "~"):
        return None
    with suppress(ValueError):
        return int(text)
    with suppress(ValueError):
        return float(text)
    if text[:1] == "[" and text[-1:] == "]":
        return tuple(value(part) for part in text[1:-1].split(",") if part.strip())
    return text


def in_yaml(text: str, path: str) -> dict[str, Any]:
    """Return what a YAML has, by the paths of its keys. Raises `SettingsError`."""
    try:
        import yaml
    except ImportError as error:
        raise SettingsError(f"to read {path}, the package PyYAML is needed: pip install pyyaml") from error
    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise SettingsError(f"{path} is no YAML: {error}") from error
    found: dict[str, Any] = {}
    _flatten(data, "", found)
    return {key: _interpolated(one, found) for key, one in found.items()}


def _flatten(data: Any, path: str, found: dict[str, Any]) -> None:
    if isinstance(data, dict) and data:
        for key, inner in data.items():
            name = str(key).removeprefix("--").replace("-", "_") if str(key).startswith("--") else str(key)
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
            value(data) if isinstance(data, str) else tuple(data) if isinstance(data, list) else data
        )


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
