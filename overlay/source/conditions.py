"""Whether a job meets a defect under its settings: met, not met, or untold. Never "safe"."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from overlay.defect import Before, Beyond, Condition, Defect, Setting
from overlay.model.record import Record

#: Returns each place where a job has a setting: the full key, the value and a remark. Returns none if the
#: setting is not known.
LookUp = Callable[[Setting], "Iterable[tuple[str, Any, str]]"]


#: What settings can say of a defect.
ANSWERS = {
    "met": "hit by these settings",
    "untold": "cannot be told from these settings",
    "not-met": "not hit by these settings",
}


#: Between reasons.
_AND = " and "


class Open(str):
    """A value that a file of settings leaves open, such as `$LR`, as it is written there."""

    __slots__ = ()


class Answer(Record):
    """What settings say of a defect, or of one condition."""

    #: One of `ANSWERS`.
    word: str
    #: The settings that decide it, and what is not known.
    why: str = ""


def names(full: str, key: str) -> bool:
    """Return whether a condition on `key` means the full key in a file: it, its end, or its pattern."""
    return full == key or full.endswith(f".{key}") or ("*" in key and fnmatchcase(full, key))


def means(full: str, key: str, aside: tuple[str, ...]) -> bool:
    """Return the same, except for full keys that match `aside`: these end alike and mean something else."""
    return names(full, key) and not any(fnmatchcase(full, pattern) for pattern in aside)


def answer(
    defect: Defect,
    look_up: LookUp,
    assumed: Sequence[Setting] = (),
    unknown: str = " is not known",
    version: str = "",
) -> Answer:
    """Return what the settings of a job say of a defect.

    Args:
        defect: The defect.
        look_up: Gives the settings.
        assumed: What must hold as well.
        unknown: What to say of a setting that `look_up` does not know.
        version: The release that is there, if that is known.

    """

    def ask(condition: Condition) -> Answer:
        if isinstance(condition, Beyond):
            return Answer(word="untold", why=condition.what)
        if isinstance(condition, Before):
            return _release(defect.project.name, version, condition.version)
        # The actor and the critic may each have the setting: one that meets the condition is enough.
        places = [_value_answer(condition, *place) for place in look_up(condition)]
        return _any(places) if places else Answer(word="untold", why=f"{condition.key}{unknown}")

    first = [ask(condition) for condition in assumed]
    if not defect.when:
        return _all([*first, Answer(word="met", why="every job hits it")])
    return _any([_all([*first, *map(ask, alternative)]) for alternative in defect.when])


def _release(project: str, version: str, limit: str) -> Answer:
    from packaging.version import InvalidVersion, Version

    try:
        # A release candidate has what its release has.
        older = Version(Version(version).base_version) < Version(limit)
    except InvalidVersion:
        return Answer(word="untold", why=f"{project} is before {limit}")
    return Answer(word="met" if older else "not-met", why=f"{project} is {version}")


def _value_answer(condition: Setting, full: str, value: Any, remark: str) -> Answer:
    if isinstance(value, Open):
        return Answer(word="untold", why=f"{full} is {value} in the file")
    if isinstance(value, tuple) and value:
        found = _any([_value_answer(condition, full, member, remark) for member in value])
        return found if found.word == "untold" else found.replace(why=f"{full} is {_shown(value)}{remark}")
    said = f"{full} is {_shown(value)}{remark}"
    holds = _holds(condition, value)
    return Answer(word="untold" if holds is None else "met" if holds else "not-met", why=said)


def _holds(condition: Setting, value: Any) -> bool | None:
    """Return whether a value meets a condition, `None` if the two cannot be compared."""
    if condition.above is not None:
        if value is None or value is False:
            return False
        # A switch that is on has its number elsewhere, where nobody looks.
        return value > condition.above if isinstance(value, (int, float)) and value is not True else None
    wanted = condition.among or condition.other
    if any(_same(value, other) for other in wanted):
        return bool(condition.among)
    if None in condition.other or value is None:
        return not condition.among
    # Some upstreams read 1 or "yes" as a switch that is on, so a switch and a text cannot be compared.
    alike = isinstance(value, bool) == any(isinstance(other, bool) for other in wanted)
    return not condition.among if alike else None


def _same(value: Any, wanted: Any) -> bool:
    if isinstance(value, bool) or isinstance(wanted, bool) or value is None or wanted is None:
        return value is wanted
    if isinstance(value, str) and isinstance(wanted, str) and "*" in wanted:
        return fnmatchcase(value, wanted)
    return bool(value == wanted)


def _shown(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "on" if value else "off"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _all(answers: Sequence[Answer]) -> Answer:
    """Return the answer of conditions that must all hold: one that does not hold decides."""
    against = [one for one in answers if one.word == "not-met"]
    return against[0] if against else _together(answers, "untold", "met")


def _any(answers: Sequence[Answer]) -> Answer:
    """Return the answer of alternatives: one that holds decides."""
    for_it = [one for one in answers if one.word == "met"]
    return for_it[0] if for_it else _together(answers, "untold", "not-met")


def _together(answers: Sequence[Answer], first: str, second: str) -> Answer:
    word = first if any(one.word == first for one in answers) else second
    # Alternatives share conditions, whose reasons are said once.
    why = dict.fromkeys(why for one in answers if one.word == word for why in one.why.split(_AND) if why)
    return Answer(word=word, why=_AND.join(why))
