"""The settings of a job, and whether it meets a defect under them: met, not met, or untold. Never "safe".

The options of an upstream and their defaults are read in its source, which is never run. Any other setting in
a file is a slip, or for another release.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import takewhile
from typing import Any

from overlay.defect import Defect, Dialect
from overlay.desk.audit import settings_file
from overlay.errors import OverlayError, SettingsError
from overlay.model.record import Record
from overlay.source import conditions
from overlay.source.conditions import Answer, Open, means, names
from overlay.source.known_defects import dialects
from overlay.source.source import Tree
from overlay.source.unwarned import parse

#: Said of a value that the file leaves out.
DEFAULT = ", upstream's default"
#: Stands for a default that is no constant in the source.
_COMPUTED = Open("computed")
#: The same of an option that is on or off.
_SWITCH = Open("computed, on or off")


class JobSettings(Record):
    """The settings of one job."""

    #: The file that they stand in.
    file: str
    dialect: Dialect
    values: dict[str, Any]
    #: The options of the upstreams that are there, each with its default, which may be `Open`.
    options: dict[str, Any] = {}  # noqa: RUF012 -- a record is never changed
    #: Where the file takes further settings from: one that it lacks may stand there.
    elsewhere: tuple[str, ...] = ()
    #: The files of `Dialect.sources` that were not read, each with the reason; empty if it is not there.
    missing: dict[str, str] = {}  # noqa: RUF012 -- a record is never changed

    def look_up(self, key: str) -> list[tuple[str, Any, str]]:
        """Return each place of a setting, its value there and a remark; empty if nothing is known."""
        for source, pattern, decided in self.dialect.decided:
            said = self.values.get(source)
            told = said is not None and said is not False and fnmatchcase(str(said), pattern)
            if told and key in (decided or (key,)):
                return [(key, Open(f"decided by {source}"), "")]
        aside = self.dialect.aside.get(key, ())
        named = [(full, value, "") for full, value in self.values.items() if means(full, key, aside)]
        implied = self._implied(key)
        if named and key in self.dialect.defaults:
            # If another setting decides for all roles, it decides for those that the file leaves out.
            return named + (implied or [] if "." in named[0][0] else [])
        if named:
            # A role that the file leaves out has upstream's default, whatever the file says of another.
            return named + [place for place in self._defaults(key, aside) if "." in place[0]]
        if implied is not None or self.elsewhere:
            return implied or []
        if key in self.dialect.defaults:
            return [(key, self.dialect.defaults[key], DEFAULT)]
        absent = [(key, None, ", and no option of this release")]
        return absent if self._is_no_option(key) else self._defaults(key, aside)

    def _is_no_option(self, key: str) -> bool:
        """Return whether all configurations with keys beside this one were read, and lack it."""
        root, dot, _ = key.partition(".")
        if not dot or key in self.options or any(path.endswith(".yaml") for path in self.missing):
            return False
        return any(one.startswith(root + dot) for one in self.options)

    def _implied(self, key: str) -> list[tuple[str, Any, str]] | None:
        """Return what other settings imply for one that is left out, `None` if they imply nothing."""
        for source, pattern, target, value in self.dialect.implies:
            if names(target, key) or names(key, target):
                for full, said in self.values.items():
                    if not names(full, source):
                        continue
                    if pattern == "*" and self.elsewhere:
                        return []
                    if isinstance(said, Open) and pattern != "*":
                        return [(full, said, "")]
                    if fnmatchcase(str(said), pattern):
                        beside = f"upstream's default beside {full}"
                        why = beside if "*" in source else f"as {full} is {said}"
                        return [] if value is ... else [(key, value, f", {why}")]
        return None

    def _defaults(self, key: str, aside: tuple[str, ...]) -> list[tuple[str, Any, str]]:
        """Return the defaults of the options that a key means and the file leaves out, each value once."""
        tail = key.rpartition("*")[2]
        found = {
            full: Open("not") if self.elsewhere else value
            for full, value in self.options.items()
            if full.endswith(tail) and means(full, key, aside)
            if not isinstance(value, Open) and full not in self.values
        }
        alike = {repr(value): (full, value, DEFAULT) for full, value in reversed(found.items())}
        return list(alike.values())

    def answer(self, defect: Defect, version: str = "") -> Answer:
        """Return what the settings say of a defect in a release."""
        project = defect.project.name
        if project not in self.dialect.projects:
            return Answer(word="untold", why=f"{self.file} is read as {self.dialect.name}")
        return conditions.answer(
            defect,
            lambda one: self.look_up(one.key),
            self.dialect.assumes.get(project, ()),
            unknown=" is not in the file",
            version=version,
        )

    def unknown(self) -> dict[str, str]:
        """Return the keys that are no options of what is there, each with the nearest option, or nothing."""
        known = {*self.options, *self.dialect.defaults, *(implied[0] for implied in self.dialect.implies)}
        ends = dict.fromkeys(key.rpartition(".")[2] for key in known)
        found = {}
        for full in self.values:
            last = full.rpartition(".")[2]
            passed = any(fnmatchcase(full, pattern) for pattern in self.dialect.passed)
            # YAML with flags also has environment variables beside them.
            aside = passed or full.partition(".")[0].isupper()
            if not (aside or full in known or {last, _plain(last)} & ends.keys()):
                near = get_close_matches(last, ends, n=1, cutoff=0.85)
                found[full] = near[0] if near else ""
        return found


def _plain(key: str) -> str:
    """Return the name of an option without "no": parsers made of fields have a second flag, which says no."""
    return key.removeprefix("no_").removeprefix("disable_")


def _is_switch(key: str, defaults: dict[str, Any]) -> bool:
    """Return whether an option takes no value: by its default, or if that is not known by its name."""
    known = [defaults[one] for one in (key, _plain(key)) if one in defaults]
    return any(one is False or one is _SWITCH for one in known) or bool(
        not known and {"enable", "disable"} & {*key.split("_")}
    )


def read_settings(path: str, tree: Tree) -> JobSettings:
    """Return the settings of a job in a file, for the upstreams in a tree. Raises `SettingsError`."""
    known = dialects()
    given = settings_file.read(path, [one for dialect in known for one in dialect.programs])
    return recognise(path, given, known, tree.read)


def recognise(
    file: str,
    given: tuple[dict[str, Any], tuple[str, ...]],
    dialects: Sequence[Dialect],
    read: Callable[[str], str | None],
) -> JobSettings:
    """Return settings with the dialect that they are in. Raises `SettingsError` if they are in none.

    Args:
        file: The file that they stand in.
        given: The settings by key, and what the file takes from elsewhere.
        dialects: All that are known.
        read: Reads a file of the upstreams that are installed.

    """
    values, elsewhere = {**given[0]}, given[1]
    scores = {
        dialect.name: sum(any(fnmatchcase(key, mark) for mark in dialect.marks) for key in values)
        for dialect in dialects
    }
    best = max(dialects, key=lambda dialect: scores[dialect.name])
    if not scores[best.name]:
        known = ", ".join(dialect.name for dialect in dialects)
        other = f", and takes settings from {', '.join(elsewhere)}: give the command line that it starts"
        raise SettingsError(
            f"{file} has no setting that overlay knows{other if elsewhere else f'; it can be {known}'}"
        )
    declared, missing = options(best, read)
    defaults = declared | best.defaults
    # A `$WORD` after a switch is no value: it may hold any settings, and override those before it.
    unclear = [
        key
        for key, value in values.items()
        if isinstance(value, Open) and value[:1] in "$`" and "." not in key and _is_switch(key, defaults)
    ]
    elsewhere += tuple(values[key] for key in unclear)
    for key in takewhile(lambda key: key != unclear[-1], [*values] if unclear else ()):
        values[key] = Open(f"{values[key]} unless {elsewhere[-1]} sets it")
    elsewhere += tuple(
        f"{key}={value}"
        for key, patterns in best.whole.items()
        for value in [values.get(key)]
        if value is not None and not any(fnmatchcase(str(value), pattern) for pattern in patterns)
    )
    return JobSettings(
        file=file, dialect=best, values=values, options=declared, elsewhere=elsewhere, missing=missing
    )


def options(dialect: Dialect, read: Callable[[str], str | None]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the options by key, each with its default or an `Open`, and the files that were not read.

    Each file comes with the reason, which is empty if the file is not there.
    """
    found: dict[str, Any] = {}
    missing = {}
    for path in dialect.sources:
        try:
            text = read(path)
            if text:
                found = {**_in_file(path, text), **found}
            else:
                missing[path] = ""
        except (SyntaxError, ValueError, RecursionError, OverlayError) as error:  # noqa: PERF203 -- each by itself
            missing[path] = str(error)
    return found, missing


@lru_cache(maxsize=32)
def _in_file(path: str, text: str) -> dict[str, Any]:
    return dict(_declared(parse(text, path))) if path.endswith(".py") else settings_file.in_yaml(text, path)


def _declared(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Yield the options that a parser is given, and the fields of classes: some parsers are made of these."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            # A call of `add_argument`, or of what wraps it.
            said = {word.arg: _constant(word.value) for word in node.keywords}
            switch = said.get("action") in ("store_true", "store_false")
            default = False if switch else said.get("default")
            yield from ((flag, default) for flag in _flags(*node.args))
        for inner in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
                # The default does not count: an upstream may override it when it makes its configuration.
                default = _SWITCH if ast.unparse(inner.annotation) == "bool" else _COMPUTED
                yield inner.target.id, default
                # The flags of a field may have other names.
                named = ast.walk(inner.value) if inner.value is not None else ()
                yield from ((flag, default) for flag in _flags(*named))


def _flags(*nodes: ast.AST) -> Iterator[str]:
    for one in map(_constant, nodes):
        if isinstance(one, str) and re.fullmatch(r"--\w[\w-]*", one):
            yield one[2:].replace("-", "_")


def _constant(node: ast.AST) -> Any:
    """Return the constant that a node is, if it is one single value."""
    try:
        found = ast.literal_eval(node)
    except (ValueError, TypeError):
        return _COMPUTED
    return _COMPUTED if isinstance(found, (list, tuple, set, dict)) else found
