"""The settings of a job, as they stand in a file: flags, overrides `a.b=c`, or YAML.

What only a shell knows stays as it is written, and decides nothing.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any

from overlay.desk.audit.script import Word, commands, file_text
from overlay.errors import SettingsError
from overlay.launch.interpreter import STARTERS
from overlay.source.conditions import Open

_FLAG = re.compile(r"--([A-Za-z][\w.-]*)(=(.*))?$", re.DOTALL)
_OVERRIDE = re.compile(r"\+{0,2}((?:[A-Za-z_]\w*\.)+\w+|(?:model_)?engine)=(.*)$", re.DOTALL)
#: Words that may stand for any number of settings. They are then no value of a flag.
_UNTOLD = re.compile(
    r"\$(?:[\w@*]+|\{(?:[^{}]|\{.*\})*\}|\((?!seq ).*\))|`.*|-.*|[^=]*[$`][^=]*=.*", re.DOTALL
)
#: What is filled in before anything reads it: by a shell, by Hydra, or in a template.
_OPEN = re.compile(r".*[$`].*|.*\{\{.*|\?\?\?|<.*>|@\w+@|%\w+%", re.DOTALL)
#: Commands that start a program with the words behind its name.
_LAUNCHERS = (*STARTERS, "exec", "mpirun", "python*", "ray", "srun", "torchrun", "uv")
#: A value that stands for several in Hydra, or calls a function of Hydra's.
_SWEPT = re.compile(r"[^\[{]*[,(\\].*", re.DOTALL)
#: Words by which a text in YAML shows that it is a command, or a part of one.
_COMMAND = re.compile(r"(?:^|\s)(?:--[A-Za-z]|\+{0,2}[A-Za-z_]\w*(?:\.\w+)+=)")
#: Hydra's short names of its options.
_SHORT = {"-cn": "--config-name", "-cp": "--config-path", "-cd": "--config-dir"}
_SPREAD = re.compile(r"\$\{\w+\[[@*]")
#: The key for what a YAML takes from elsewhere: no setting has an empty one.
_ELSEWHERE = ""
#: Said of overrides without a configuration.
_UNNAMED = "the configuration that it overrides (give --config-name, or the config.yaml of the run)"
#: The most settings of a file: one with more is not for a job.
_MOST_SETTINGS = 20_000
_WORDS = {"true": True, "false": False, "null": None, "~": None}


def read(path: str, programs: Sequence[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the settings in a file by key, and what it takes from elsewhere, where there may be more.

    What a script reads beside itself is read too. Raises `SettingsError`.

    Args:
        path: The file.
        programs: Patterns of the programs whose defaults are known, if a script starts them.

    """
    if path.endswith((".yaml", ".yml", ".json")):
        found = in_yaml(file_text(path), path)
        if any(key.partition(".")[0] in ("_wandb", "wandb_version") for key in found):
            raise SettingsError(
                f"{path} is written by wandb: give .hydra/config.yaml of the run, or its command line"
            )
        elsewhere = list(found.pop(_ELSEWHERE, ()))
        composed = [key for key in found if key == "defaults" or key.startswith("defaults.")]
        elsewhere += ["its list of defaults (give the .hydra/config.yaml of a run)"] if composed else []
        if _UNNAMED in elsewhere:
            # Hydra writes the name of that configuration into a file beside the overrides.
            beside = os.path.join(os.path.dirname(path), "hydra.yaml")
            with suppress(SettingsError, KeyError):
                found["config_name"] = in_yaml(file_text(beside), beside)["hydra.job.config_name"]
                elsewhere.remove(_UNNAMED)
        found = {key: one for key, one in found.items() if key not in composed}
    else:
        found, elsewhere = _in_script(path, programs)
    if not found:
        raise SettingsError(f"there are no settings in {path}: no command with --flag or a.b=c, no YAML")
    return found, tuple(dict.fromkeys(elsewhere))


def _in_script(path: str, programs: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the settings of the job that a script starts, or of a list with one setting on each line."""
    lines, missing = commands(path)
    jobs = [_started(line, programs) for line in lines if line and not _begins(line)]
    most = max((len(job.settings()) for job in jobs), default=0)
    if most:  # another program that has far fewer prepares the job, or waits for it
        jobs = [job for job in jobs if 2 * len(job.settings()) >= most or (job.known and job.settings())]
    else:
        jobs = [_unstarted(word for line in lines if _begins(line) for word in line)]
    found: dict[str, Any] = {}
    for job in jobs:
        found |= job.settings()
    for key, one in found.items():
        if any(repr(job.settings().get(key, ...)) != repr(one) for job in jobs):
            found[key] = Open(f"{one} in one command of several")
    elsewhere = [word for job in jobs for word in job.elsewhere]
    return found, [*elsewhere, *(missing if elsewhere or not most else ())]


def _begins(line: list[Word]) -> bool:
    """Return whether a line begins with a setting, so that it is no command."""
    return bool(line) and bool(_FLAG.match(line[0][0]) or _OVERRIDE.match(line[0][0]))


def _started(line: list[Word], programs: Sequence[str]) -> _Job:
    """Return what a command line gives its program. An unknown program may add settings, or be none."""
    at = next(
        (at for at, (word, _) in enumerate(line) if any(fnmatchcase(word, one) for one in programs)), None
    )
    first = os.path.basename(line[0][0])
    job = _Job(line[1 if at is None else at + 1 :])
    if at is None or (at and not any(fnmatchcase(first, one) for one in _LAUNCHERS)):
        shown = [word for (before, _), (word, _) in pairwise(line) if word.endswith(".py") or before == "-m"]
        job.elsewhere.insert(0, f"the program {shown[0] if shown and at is None else line[0][0]}")
        job.known = False
    return job


def _unstarted(words: Iterable[Word]) -> _Job:
    """Return the settings in words without a program, which would decide what overrides leave out."""
    job = _Job(words)
    found = job.settings()
    job.elsewhere += [_UNNAMED] if "config_name" not in found and any("." in key for key in found) else []
    return job


class _Job:
    """The settings that a program is given."""

    def __init__(self, words: Iterable[Word]) -> None:
        #: Whether its program is known.
        self.known = True
        self._found: dict[str, list[Any]] = {}
        #: The settings that only a branch gives.
        self._perhaps: set[str] = set()
        #: By setting, a later word that may set it again: of two values, the last one counts.
        self._before: dict[str, str] = {}
        #: Words that may stand for any number of settings, or that are not known.
        self.elsewhere: list[str] = []
        #: The flag that the next word may be a value of.
        self._flag = ""
        for word, sure in words:
            name, equals, rest = word.partition("=")
            self._take(f"{_SHORT.get(name, name)}{equals}{rest}", sure=sure)

    def settings(self) -> dict[str, Any]:
        """Return the settings by key: a switch is on, one value is itself, several are a tuple."""
        found: dict[str, Any] = {}
        for key, given in self._found.items():
            found[key] = True if not given else given[0] if len(given) == 1 else tuple(given)
        found |= {key: Open(f"{found[key]} in a branch") for key in self._perhaps}
        return found | {
            key: Open(f"{found[key]} unless {word} sets it") for key, word in self._before.items()
        }

    def _take(self, word: str, *, sure: bool) -> None:
        option, override = _FLAG.match(word), _OVERRIDE.match(word)
        flag, self._flag = self._flag, ""
        unclear = isinstance(value(word), Open) and _UNTOLD.fullmatch(word)
        if option:
            self._flag = option[1].replace("-", "_")
            self._put(self._flag, _of_flag(option[3] or ""), sure=sure)
            self._flag = self._flag if option[2] is None else ""
        elif override:
            self._put(override[1], [_of_override(override[2])], sure=sure)
            inside = override[2] if override[2].startswith("{") else ""
            for key, inner in re.findall(r"([\w.]+) *: *([^,{}]+)", inside):
                self._put(f"{override[1]}.{key}", [value(inner)], sure=sure and inside.count("{") == 1)
        elif flag and word != "--" and not _SPREAD.search(word) and not (unclear and self._found[flag]):
            self._put(flag, [*self._found[flag], *_of_flag(word)], sure=sure and flag not in self._perhaps)
            self._flag = flag
        elif word not in ("", "--"):
            self.elsewhere.append(word)
            if re.search("[$`]", word):
                self._before.update(dict.fromkeys(self._found, word))

    def _put(self, key: str, values: list[Any], *, sure: bool) -> None:
        self._found[key] = values
        if sure:
            self._before.pop(key, None)
        (self._perhaps.discard if sure else self._perhaps.add)(key)


def value(text: str) -> Any:
    """Return the value that a text stands for: a number, a switch, `None`, a tuple, or the text itself."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    if _OPEN.fullmatch(text):
        return Open(text)
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    with suppress(ValueError):
        return int(text)
    with suppress(ValueError):
        return float(text)
    in_brackets = text[:1] == "[" and text[-1:] == "]"
    return tuple(value(part) for part in text[1:-1].split(",") if part.strip()) if in_brackets else text


def _of_flag(text: str) -> list[Any]:
    """Return the values that a text gives a flag: "None" is `None`, and "none" one choice of several."""
    found = value(text)
    return [] if found == "" else [None if found == "None" else found]


def _of_override(text: str) -> Any:
    """Return the value that a text has in Hydra: what is quoted is a text.

    What an upstream makes of an empty text is not known, and a table has its own settings.
    """
    found = value(text)
    if found == "" or text[0] == "{" or _SWEPT.fullmatch(text):
        return Open(text or "''")
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if quoted and not isinstance(found, Open) else found


def in_yaml(text: str, path: str) -> dict[str, Any]:
    """Return the values in a YAML by the paths of their keys. Raises `SettingsError`."""
    try:
        import yaml
    except ImportError as error:
        raise SettingsError(f"PyYAML is needed to read {path}: pip install pyyaml") from error
    found: dict[str, Any] = {}
    in_lists: dict[str, Any] = {}
    try:
        # A number or a date that Python cannot hold is a `ValueError`.
        data = yaml.safe_load(text)
        _flatten(data, "", found)
        _flatten_tables(data, "", in_lists)
    except RecursionError as error:
        raise SettingsError(f"{path} is nested too deeply, or contains itself") from error
    except OverflowError as error:
        raise SettingsError(f"{path} has more than {_MOST_SETTINGS} settings, too many for a job") from error
    except (yaml.YAMLError, ValueError) as error:
        raise SettingsError(f"{path} is not valid YAML: {error}") from error
    if len(in_lists) > len(found):
        where = next(iter(in_lists)).partition("[")[0]
        raise SettingsError(
            f"{path} has its settings in a list of tables{f' ({where})' if where else ''}: give those of one "
            "job in a file of their own"
        )
    return {key: _interpolated(one, found) for key, one in found.items()}


def _flatten(data: Any, path: str, found: dict[str, Any]) -> None:
    """Put the values in a YAML into `found`, by path, up to a limit: aliases can make a short file huge."""
    if len(found) > _MOST_SETTINGS:
        raise OverflowError
    if isinstance(data, dict) and data:
        for key, inner in data.items():
            name = str(key).removeprefix("--").replace("-", "_")
            # Megatron's tests have their flags under MODEL_ARGS.
            _flatten(inner, f"{path}.{name}" if path and not str(key).startswith("--") else name, found)
        return
    items = data if isinstance(data, list) else [data]
    texts = [one for one in items if isinstance(one, str)]
    # Overrides, as Hydra writes them beside its configurations.
    overrides = bool(texts) and all("=" in one for one in texts) and len(texts) == len(items)
    if isinstance(data, list) and (overrides or not path):
        # The quotes of an override are Hydra's.
        words = (shlex.split(text) if re.search(r"\s", text) else [text] for text in map(str, data))
        job = _unstarted((word, True) for inside in words for word in inside)
        found.update(job.settings())
        if job.elsewhere:
            _add_elsewhere(found, *job.elsewhere)
    elif path:
        # No condition asks for what is nested in a list.
        plain = tuple(Open("...") if isinstance(one, (list, dict)) else one for one in items)
        found[path] = plain if isinstance(data, list) else value(data) if isinstance(data, str) else data
        if any(map(_COMMAND.search, texts)):
            _add_elsewhere(found, f"the text of {path}")


def _flatten_tables(data: Any, path: str, found: dict[str, Any]) -> None:
    """Put what tables in lists hold into `found`, as `_flatten` does not, except Hydra's list of defaults."""
    if isinstance(data, dict):
        for key, inner in data.items():
            _flatten_tables(inner, f"{path}.{key}" if path else str(key), found)
    elif isinstance(data, list) and path != "defaults":
        for at, one in enumerate(data):
            if isinstance(one, dict):
                _flatten(one, f"{path}[{at}]", found)


def _add_elsewhere(found: dict[str, Any], *words: str) -> None:
    found[_ELSEWHERE] = (*found.get(_ELSEWHERE, ()), *words)


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
