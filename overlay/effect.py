"""What a patch counts of what it changed, in less than a microsecond.

A patch may declare it as `EFFECT`, in its module or in `effect.py` in its folder:

    EFFECT = effect(
        __name__,
        "step",
        Figure(name="over", says="micro-batches over the budget"),
        then="without it {over} micro-batches over the budget",
    )

The replacement adds to it: `EFFECT.calls += 1`. There is no lock: two threads that add at the same moment may
lose one. A figure is a number of Python's: a replacement must neither fetch it from a device nor keep a
tensor in it. What only the device knows is `nan`, which is never shown.

A call that a patch hands on as it came is not counted. Code that `torch.compile` compiles counts once, when
it is traced.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from overlay.model.record import Record
from overlay.model.text import plural

Number = int | float
_INFINITE = float("inf")
#: How to combine the figures of several processes, and the value that a figure starts at.
_COMBINE: dict[str, tuple[Any, Number]] = {"sum": (sum, 0), "max": (max, -_INFINITE), "min": (min, _INFINITE)}


class Figure(Record):
    """One number that a patch keeps of its run."""

    #: The attribute that replacements add to.
    name: str
    #: What it is, as a clause after the number: "micro-batches over the budget".
    says: str
    #: `bytes`, `tokens`, ...; empty for a count, and for a ratio.
    unit: str = ""
    #: How figures of several processes become one: `sum`, `max` or `min`.
    combine: str = "sum"


class Effect(Record):
    """What a patch counts: its figures, and what they have come to."""

    #: What `calls` and `changed` count, in the singular: "step".
    of: str
    #: `calls` first, unless each of them is changed; then `changed`, then the patch's own.
    figures: tuple[Figure, ...]
    #: What the patch did to those it changed, in the past tense.
    did: str = "changed"
    #: How the sentence goes on if something was changed, with names of figures in braces.
    then: str = ""
    #: Figures that have a value. None of them is infinite.
    values: dict[str, Number] = {}  # noqa: RUF012 -- nobody changes it

    @property
    def reached(self) -> bool:
        """Whether there was anything to look at."""
        return any(self.values.get(name) for name in ("calls", "changed"))


def _compiling() -> bool:
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    return compiler is not None and compiler.is_compiling()


def _note_trace(place: str) -> None:
    """Count one trace of the code in a module, and make `changed` unknown: compiled code does not count."""
    counts = _made[place]
    first, second, *_ = *(f"_{figure.name}" for figure in counts.effect.figures), ""
    setattr(counts, first, getattr(counts, first) + 1)
    if first == "_calls":
        setattr(counts, second, float("nan"))


# torch calls it while it traces, and leaves it out of what it compiles.
vars(_note_trace)["_dynamo_marked_constant"] = True


class _Kept:
    """The attribute of `Counts` for one figure. Code that torch compiles reads its start value, sets nothing.

    Otherwise torch would guard the number, and compile again after each call.
    """

    def __init__(self, figure: Figure) -> None:
        self.name, self.slot = figure.name, f"_{figure.name}"
        self.begins = _COMBINE[figure.combine][1]

    def __get__(self, counts: Any, _owner: object = None) -> Any:
        return self.begins if _compiling() else getattr(counts, self.slot)

    def __set__(self, counts: Any, value: Any) -> None:
        if not _compiling():
            setattr(counts, self.slot, value)
        elif self.name == counts.effect.figures[0].name:
            _note_trace(counts.place)


class Counts:
    """What replacements add to: a number under the name of each figure."""

    __slots__ = ()
    effect: Effect
    #: The module that holds it.
    place: str

    def clear(self) -> None:
        """Reset each figure."""
        for figure in self.effect.figures:
            setattr(self, figure.name, _COMBINE[figure.combine][1])

    def read(self) -> dict[str, Number]:
        """Return the figures that have a value."""
        found = {}
        for figure in self.effect.figures:
            value = getattr(self, figure.name)
            if type(value) not in (int, float):
                value = _number(value)
            if value == value and abs(value) != _INFINITE:  # noqa: PLR0124 -- NaN is not
                found[figure.name] = value
        return found

    def __reduce__(self) -> tuple[object, tuple[str]]:
        # A function that is pickled by value counts in the process that runs it. A copy is the original.
        return counts_here, (self.place,)


def effect(
    place: str, of: str, *figures: Figure, did: str = "changed", then: str = "", always: bool = False
) -> Any:
    """Return what the replacements of a patch add to.

    Args:
        place: `__name__` of the module that calls this, and keeps the result as `EFFECT`.
        of: What is counted, in the singular, such as "step": under `calls` whenever there was one to look at,
            and under `changed` if the patch changed something about it.
        figures: What else is counted.
        did: What `changed` counts, in the past tense.
        then: As in `Effect`.
        always: Whether the patch changes all that it looks at: then there are no `calls`.

    """
    own: tuple[Figure, ...] = (Figure(name="changed", says=f"{plural(of)} {did}"),)
    if not always:
        own = (Figure(name="calls", says=f"{plural(of)} looked at"), *own)
    declared = Effect(of=of, figures=(*own, *figures), did=did, then=then)
    kept = {figure.name: _Kept(figure) for figure in declared.figures}
    slots = tuple(one.slot for one in kept.values())
    made = type("Counts", (Counts,), {"__slots__": slots, "effect": declared, "place": place, **kept})()
    made.clear()
    _made[place] = made
    return made


#: The counts of each patch, by the module that holds them.
_made: dict[str, Any] = {}


def load(module: str) -> None:
    """Import the counts of the patch in a module, if it has any, so that they start at nothing.

    The name is empty for a patch that was not loaded from a module.
    """
    if not module:
        return
    name = f"{module}.effect"
    try:
        __import__(name)
    except ModuleNotFoundError as error:
        if error.name not in (name, module):
            raise


def counts_here(place: str) -> Any:
    """Return this process's counts for a function that was unpickled or copied here."""
    if place not in _made:
        __import__(place)
    return _made[place]


def effect_of(module: str) -> Effect | None:
    """Return what the patch in a module has counted, `None` if it counts nothing, or is not in use."""
    counts = _made.get(f"{module}.effect") or _made.get(module)
    return None if counts is None else counts.effect.replace(values=counts.read())


def combined(values: Mapping[str, Number], more: Mapping[str, Number], effect: Effect) -> dict[str, Number]:
    """Return the figures of two processes, or groups of them, as one."""
    found = {}
    for figure in effect.figures:
        given = [one[figure.name] for one in (values, more) if figure.name in one]
        if given:
            found[figure.name] = _COMBINE[figure.combine][0](given)
    return found


def told(effect: Effect) -> str:
    """Return the figures as the rest of a sentence that begins with the patch."""
    values = effect.values
    if not effect.reached:
        return "had nothing to do"
    total = values.get("calls", values.get("changed", 0))
    counted = f"{as_text(total)} {effect.of if total == 1 else plural(effect.of)}"
    if "changed" not in values:
        return f"looked at {counted}; how many it {effect.did} is on the device or in compiled code"
    if not values["changed"]:
        return f"looked at {counted} and changed nothing"
    text = (
        f"{effect.did} {as_text(values['changed'])} of {counted}"
        if "calls" in values
        else f"{effect.did} {counted}"
    )
    known = {one.name: as_text(values[one.name], one.unit) for one in effect.figures if one.name in values}
    try:
        return f"{text}; {effect.then.format_map(known)}" if effect.then else text
    except KeyError:  # nothing has set a figure that `then` names
        return text


def as_text(number: Number, unit: str = "") -> str:
    """Return a number as a person would write it."""
    if unit == "bytes":
        size = float(number)
        for name in ("bytes", "KiB", "MiB", "GiB"):
            if size < 1024:  # noqa: PLR2004 -- what a KiB is
                return f"{size:.3g} {name}" if name != "bytes" else f"{int(size)} {name}"
            size /= 1024
        return f"{size:,.1f} TiB"
    text = f"{number:,}" if isinstance(number, int) else f"{number:.3g}"
    return f"{text} {unit}" if unit else text


def _number(value: Any) -> Number:
    """Return a number as one of Python's, NaN for what is none."""
    try:
        found = value.item() if hasattr(value, "item") else value  # of numpy
        return int(found) if isinstance(found, int) else float(found)
    except Exception:  # noqa: BLE001 -- a figure must not stop a job
        return float("nan")


def clear() -> None:
    """Reset all figures of this process."""
    for counts in _made.values():
        counts.clear()


if hasattr(os, "register_at_fork"):
    # A fork starts at nothing: what its parent did would count twice in the sum of both.
    os.register_at_fork(after_in_child=clear)
