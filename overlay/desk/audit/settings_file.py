"""The settings of a job, as they stand in a file: flags, overrides `a.b=c`, or YAML.

A shell script is read and never run. What it assigns as a literal is filled in; what only the shell knows
stays as it is written, and nothing is concluded from it.
"""

from __future__ import annotations

import os
import re
import shlex
from contextlib import suppress

from overlay.errors import SettingsError
from overlay.model.record import TYPE_CHECKING
from overlay.source.conditions import Open

if TYPE_CHECKING:
    from typing import Any

_FLAG = re.compile(r"--([A-Za-z][\w.-]*)(=(.*))?$", re.DOTALL)
_OVERRIDE = re.compile(
    r"\+{0,2}((?:[A-Za-z_]\w*\.)+\w+|[a-z]\w*@\w[\w.]*|(?:model_)?engine)=(.*)$", re.DOTALL
)
_ASSIGNED = re.compile(r"(?:(?:export|local|readonly)\s+)?([A-Za-z_]\w*)=(.*)$")
_LITERAL = re.compile(r"[\w./:,+-]*")
_ARRAY = re.compile(
    r"(?:^|&&|\|\||[;]|\bthen\b|\belse\b)\s*(?:(?:declare|local|readonly|export)\s+(?:-\w+\s+)*)?([A-Za-z_]\w*)\+?=\("
)
_SOURCED = re.compile(r"\s*(?:source|\.)\s+(\S+)")
_SPREAD = re.compile(r"\$\{(\w+)\[[@*]\]\}")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
#: A word in the place of which the shell puts any number of others.
_BARE = re.compile(r"\$(?:\w+|\{[^{}]*\}|\(.*)")
#: What begins and ends lines that may not be run.
_OPENS, _CLOSES = ("if", "case"), ("fi", "esac")
#: Words that end a command.
_ENDS = ("&", "&&", "||", "|", ";")
#: Characters of a file, and settings in it: beyond them it is none of a job.
_MOST_TEXT, _MOST_SETTINGS = 4 << 20, 20_000
_WORDS = {"true": True, "false": False, "null": None, "none": None, "~": None}


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
        script = _Script()
        script.read(whole)
        found = script.settings()
        spread = dict.fromkeys(_SPREAD.findall(whole))
        elsewhere += [f"${{{name}[@]}}" for name in spread if name not in script.arrays]
        elsewhere += script.bare
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
        raise SettingsError(f"{path} has more than {_MOST_TEXT} characters, too many for a job")
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
    script = _Script()
    script.read(text)
    return script.settings()


class _Script:
    """What is read in a script, line by line. Branches, loops and functions are not followed."""

    def __init__(self) -> None:
        self.arrays: set[str] = set()
        #: What stands for any number of words in a command that has settings.
        self.bare: list[str] = []
        #: The variables that are assigned, `None` for one whose value cannot be told.
        self._known: dict[str, str | None] = {}
        self._found: dict[str, list[Any]] = {}
        #: The settings that only a branch gives.
        self._perhaps: set[str] = set()
        self._branches = 0
        self._sure = True
        #: Of the command that is read: the last word, whether it has settings, and what may hold more.
        self._before, self._settled = "", False
        self._open: list[str] = []

    def settings(self) -> dict[str, Any]:
        """Return the settings by key."""
        found = {key: _joined(one) for key, one in self._found.items()}
        found.update((key, Open(f"{found[key]} in a branch")) for key in self._perhaps)
        # `engine=megatron` alone on a line is an override in a list of such, and in a script a variable.
        said = [key for key in self._known if key not in found and _OVERRIDE.match(f"{key}=")]
        return found | {key: Open(self._known[key] or "a variable") for key in said}

    def read(self, text: str) -> None:
        """Read a script, a command line, or settings one on each line."""
        flag, in_array, goes_on = "", False, False
        for full in text.splitlines():
            line = full.rstrip()
            if not in_array and not goes_on:
                self._end_command()
                self._count_branches(line)
                if self._assign(line.strip()):
                    continue
            array = None if in_array else _ARRAY.search(line)
            if array:
                self.arrays.add(array[1])
                self._sure = self._sure and not line[: array.start(1)].strip()
                in_array, line = True, line[array.end() :]
            goes_on = line.endswith("\\")
            parts, closed = _split(line.removesuffix("\\"), in_array=in_array)
            for word in parts:
                flag = self.take(self._filled(word), flag)
            in_array = in_array and not closed
            # What stands in the next line belongs to a flag only where the command goes on.
            flag = flag if in_array or goes_on else ""
        self._end_command()

    def take(self, word: str, flag: str = "") -> str:
        """Put one word where it belongs, and return the flag that the next one may be a value of."""
        before, self._before = self._before, word
        option, override = _FLAG.match(word), _OVERRIDE.match(word)
        if _SPREAD.fullmatch(word) or word in ("$@", "$*", "--", ")"):
            return ""
        if word in _ENDS:
            self._end_command()
            return ""
        if option:
            flag = option[1].replace("-", "_")
            self._put(flag, [] if option[2] is None else [value(option[3])])
            return flag if option[2] is None else ""
        if override:
            self._put(override[1], [value(override[2])])
            return ""
        if _BARE.fullmatch(word) and not before.startswith(("-", ">", "<", "2>", "&>")):
            self._open.append(word)
            return ""
        if flag:
            self._found[flag].append(value(word))
        return flag

    def _put(self, key: str, values: list[Any]) -> None:
        self._settled = True
        self._found[key] = values
        (self._perhaps.discard if self._sure else self._perhaps.add)(key)

    def _end_command(self) -> None:
        self.bare += self._open if self._settled else []
        self._before, self._settled, self._open = "", False, []
        self._sure = not self._branches

    def _count_branches(self, line: str) -> None:
        parts = re.split(r"[\s;]+", line.partition("#")[0].strip())
        self._branches = max(0, self._branches - sum(part in _CLOSES for part in parts))
        self._branches += parts[0] in _OPENS and not set(parts) & {*_CLOSES}
        self._sure = not self._branches

    def _assign(self, line: str) -> bool:
        """Note what a line assigns, and return whether it does nothing else."""
        assigned = _ASSIGNED.match(line)
        if not assigned:
            return False
        name, text = assigned.groups()
        told = bool(_LITERAL.fullmatch(text)) and self._sure and self._known.get(name, text) == text
        self._known[name] = text if told else None
        return bool(_LITERAL.fullmatch(text))

    def _filled(self, word: str) -> str:
        return _VARIABLE.sub(lambda match: self._known.get(match[1] or match[2]) or match[0], word)


def _split(line: str, *, in_array: bool) -> tuple[list[str], bool]:
    """Return the words of a line up to the end of the array that it is in, and whether that ends there."""
    try:
        found = shlex.split(line, comments=True)
    except ValueError:  # a quotation that goes on in the next line
        found = line.partition("#")[0].split()
    for place, word in enumerate(found):
        bare = word.rstrip(";")
        if in_array and bare.endswith(")") and "(" not in bare:
            return [*found[:place], *filter(None, [bare[:-1]])], True
    return found, False


def _joined(values: list[Any]) -> Any:
    """Return what a flag was given: a switch nothing, one value itself, several a tuple."""
    values = [one for one in values if one != ""]
    return True if not values else values[0] if len(values) == 1 else tuple(values)


def value(text: str) -> Any:
    """Return what a text stands for: a number, a switch, nothing, or itself."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    if "$" in text or "`" in text or text == "???":
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
        raise SettingsError(f"{path} is nested too deeply, or contains itself") from error
    except OverflowError as error:
        raise SettingsError(f"{path} has more than {_MOST_SETTINGS} settings, too many for a job") from error
    except (yaml.YAMLError, ValueError) as error:
        raise SettingsError(f"{path} is not valid YAML: {error}") from error
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
        found.update(_listed(data))
    elif isinstance(data, list) and not path:
        found.update(_listed(data))
    elif path:
        found[path] = (
            value(data) if isinstance(data, str) else _items(data) if isinstance(data, list) else data
        )


def _listed(data: list[Any]) -> dict[str, Any]:
    """Return the settings in a list of flags and overrides."""
    script = _Script()
    for one in data:
        flag = ""
        for word in _split(str(one), in_array=False)[0]:
            flag = script.take(word, flag)
    return script.settings()


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
