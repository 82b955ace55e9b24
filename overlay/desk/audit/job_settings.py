"""The settings of a job, and whether it meets a defect under them: met, not met, or untold. Never "safe"."""

from __future__ import annotations

from difflib import get_close_matches
from fnmatch import fnmatchcase

from overlay.defect import Beyond, Setting
from overlay.desk.audit.settings_file import Open
from overlay.desk.audit.upstream_options import options
from overlay.errors import SettingsError
from overlay.model.record import TYPE_CHECKING, Record

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from overlay.defect import Condition, Defect, Dialect
    from overlay.patch import ReadFile

#: What settings can say of a defect.
ANSWERS = {
    "met": "met by these settings",
    "untold": "cannot be told from these settings",
    "not-met": "not met by these settings",
}
#: Said of a value that the file leaves out.
DEFAULT = ", upstream's default"


class Answer(Record):
    """What settings say of a defect, or of one condition."""

    #: One of `ANSWERS`.
    word: str
    #: The settings that decide it, and what is not known.
    why: str = ""


class Settings(Record):
    """The settings of one job."""

    #: The file that they stand in.
    file: str
    dialect: Dialect
    values: dict[str, Any]
    #: The options of the upstreams that are there, each with its default, which may be `Open`.
    options: dict[str, Any] = {}  # noqa: RUF012 -- a record is never changed
    #: What the file takes from elsewhere: what it does not say itself may stand there.
    elsewhere: tuple[str, ...] = ()
    #: The files that should have told more of them, and are not there.
    missing: tuple[str, ...] = ()

    def look_up(self, key: str) -> list[tuple[str, Any, str]]:
        """Return where a setting is given, its value and a remark on that; empty if nothing is known."""
        aside = self.dialect.aside.get(key, ())
        named = [(full, one, "") for full, one in self.values.items() if _means(full, key, aside)]
        if named and key in self.dialect.defaults:
            return named
        if named:
            # A role that the file leaves out has upstream's default, whatever the file says of another.
            return named + [one for one in self._defaults(key, aside) if "." in one[0]]
        implied = self._implied(key)
        if implied is not None or self.elsewhere:
            return implied or []
        if key in self.dialect.defaults:
            return [(key, self.dialect.defaults[key], DEFAULT)]
        return self._defaults(key, aside)

    def _implied(self, key: str) -> list[tuple[str, Any, str]] | None:
        """Return what other settings say of one that is left out, `None` if they say nothing of it."""
        for source, pattern, target, one in self.dialect.implies:
            if names(target, key) or names(key, target):
                for full, said in self.values.items():
                    if not names(full, source):
                        continue
                    if isinstance(said, Open) and pattern != "*":
                        return [(full, said, "")]
                    if fnmatchcase(str(said), pattern):
                        beside = f"upstream's default beside {full}"
                        why = beside if "*" in source else f"as {full} is {said}"
                        return [] if one is ... else [(key, one, f", {why}")]
        return None

    def _defaults(self, key: str, aside: tuple[str, ...]) -> list[tuple[str, Any, str]]:
        """Return the defaults of the options that a key means and the file leaves out, alike ones once."""
        if self.elsewhere:
            return []
        found = {
            full: one
            for full, one in self.options.items()
            if not isinstance(one, Open) and full not in self.values and _means(full, key, aside)
        }
        alike = {repr(one): (full, one, DEFAULT) for full, one in reversed(found.items())}
        return list(alike.values())

    def unknown(self) -> dict[str, str]:
        """Return the keys that are no options of what is there, each with the nearest that is, or nothing."""
        known = {*self.options, *self.dialect.defaults, *(implied[0] for implied in self.dialect.implies)}
        ends = dict.fromkeys(key.rpartition(".")[2] for key in known)
        found = {}
        for full in self.values:
            last = full.rpartition(".")[2]
            # A parser that is made of fields has a flag for what is switched off, too.
            plain = last.removeprefix("no_").removeprefix("disable_")
            passed = any(fnmatchcase(full, pattern) for pattern in self.dialect.passed)
            if not passed and full not in known and not {last, plain} & ends.keys():
                near = get_close_matches(last, ends, n=1, cutoff=0.85)
                found[full] = near[0] if near else ""
        return found


def names(full: str, key: str) -> bool:
    """Return whether a key in a file is the setting that a condition asks for: it, or the end of its path."""
    return full == key or full.endswith(f".{key}") or ("*" in key and fnmatchcase(full, key))


def _means(full: str, key: str, aside: tuple[str, ...]) -> bool:
    return names(full, key) and not any(fnmatchcase(full, pattern) for pattern in aside)


def recognise(
    file: str, given: tuple[dict[str, Any], tuple[str, ...]], dialects: Sequence[Dialect], read: ReadFile
) -> Settings:
    """Return settings with the dialect that they are in. Raises `SettingsError` if they are in none.

    Args:
        file: Where they stand.
        given: The settings by key, and what the file takes from elsewhere.
        dialects: All that are known.
        read: Reads a file of the upstreams that are there.

    """
    values, elsewhere = given
    scores = {
        dialect.name: sum(any(fnmatchcase(key, mark) for mark in dialect.marks) for key in values)
        for dialect in dialects
    }
    best = max(dialects, key=lambda dialect: scores[dialect.name])
    if not scores[best.name]:
        known = ", ".join(dialect.name for dialect in dialects)
        raise SettingsError(f"{file} holds no setting that is known; it can be {known}")
    declared, missing = options(best, read)
    defaults = declared | best.defaults
    # A word after a switch is no value of it, and may be any number of settings.
    elsewhere += tuple(
        one
        for key, one in values.items()
        if isinstance(one, Open) and defaults.get(key) is False and "." not in key
    )
    elsewhere += tuple(
        f"{key}={one}"
        for key, patterns in best.whole.items()
        for one in [values.get(key)]
        if one is not None and not any(fnmatchcase(str(one), pattern) for pattern in patterns)
    )
    return Settings(
        file=file, dialect=best, values=values, options=declared, elsewhere=elsewhere, missing=tuple(missing)
    )


def answer(defect: Defect, settings: Settings) -> Answer:
    """Return what the settings say of a defect."""
    if defect.project.name not in settings.dialect.projects:
        return Answer(word="untold", why=f"{settings.file} has the settings of {settings.dialect.name}")
    assumed = [_one(one, settings) for one in settings.dialect.assumes.get(defect.project.name, ())]
    if not defect.when:
        return _all([*assumed, Answer(word="met", why="by every job")])
    return _any([_all([*assumed, *(_one(one, settings) for one in way)]) for way in defect.when])


def _one(condition: Condition, settings: Settings) -> Answer:
    if isinstance(condition, Beyond):
        return Answer(word="untold", why=condition.what)
    places = settings.look_up(condition.key)
    if not places:
        more = f", which takes more from {', '.join(settings.elsewhere)}" if settings.elsewhere else ""
        return Answer(word="untold", why=f"{condition.key} is not in the file{more}")
    answers = [_value(condition, *place) for place in places]
    # An engine for the actor and one for the critic, say: one that meets it is enough.
    return _any(answers)


def _value(condition: Setting, full: str, one: Any, remark: str) -> Answer:
    if isinstance(one, Open):
        return Answer(word="untold", why=f"{full} is {one} in the file")
    if isinstance(one, tuple) and one:
        found = _any([_value(condition, full, member, remark) for member in one])
        return found if found.word == "untold" else found.replace(why=f"{full} is {_shown(one)}{remark}")
    said = f"{full} is {_shown(one)}{remark}"
    holds = _holds(condition, one)
    return Answer(word="untold" if holds is None else "met" if holds else "not-met", why=said)


def _holds(condition: Setting, one: Any) -> bool | None:
    """Return whether a value meets a condition, `None` if the two cannot be compared."""
    if condition.above is not None:
        if one is None or isinstance(one, bool):
            return False
        return one > condition.above if isinstance(one, (int, float)) else None
    if condition.among:
        return any(_same(one, wanted) for wanted in condition.among)
    return not any(_same(one, wanted) for wanted in condition.other)


def _same(one: Any, wanted: Any) -> bool:
    if isinstance(one, bool) or isinstance(wanted, bool) or one is None or wanted is None:
        return one is wanted
    if isinstance(one, str) and isinstance(wanted, str) and "*" in wanted:
        return fnmatchcase(one, wanted)
    return bool(one == wanted)


def _shown(one: Any) -> str:
    if one is None:
        return "not set"
    if isinstance(one, bool):
        return "on" if one else "off"
    return " ".join(map(str, one)) if isinstance(one, tuple) else str(one)


def _all(answers: Sequence[Answer]) -> Answer:
    """Return what conditions say together that must all hold: one that does not is enough."""
    against = [one for one in answers if one.word == "not-met"]
    return against[0] if against else _together(answers, "untold", "met")


def _any(answers: Sequence[Answer]) -> Answer:
    """Return what alternatives say: one that holds is enough."""
    for_it = [one for one in answers if one.word == "met"]
    return for_it[0] if for_it else _together(answers, "untold", "not-met")


def _together(answers: Sequence[Answer], first: str, second: str) -> Answer:
    word = first if any(one.word == first for one in answers) else second
    why = dict.fromkeys(one.why for one in answers if one.word == word and one.why)
    return Answer(word=word, why=" and ".join(why))
