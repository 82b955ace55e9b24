"""An exception at each step of the engine: what is left behind by it must be all of a patch, or nothing.

A step is a line of overlay's own code that runs while a patch is put in place or taken out. A trace function
counts them in a first run; after that, one forked child for each raises there, the first or the last time
that the line is reached.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from order_world import Subject, World

import overlay

ENGINE = str(Path(overlay.__file__).parent)


class InjectedError(RuntimeError):
    """What is raised at a step."""


class InjectedInterrupt(KeyboardInterrupt):
    """The same as an interrupt, which no `except Exception` stops."""


ERRORS: dict[str, type[BaseException]] = {"error": InjectedError, "interrupt": InjectedInterrupt}


class Trace:
    """Counts how often the lines of the engine are reached, and raises at one of them."""

    def __init__(self, place: tuple[str, int] | None = None, time: int = 0, error: Any = None) -> None:
        self.reached: dict[tuple[str, int], int] = {}
        self._place = place
        self._time = time
        self._error = error
        self.raised = False

    def call(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        """Trace the calls of the engine, and no others."""
        return self.line if frame.f_code.co_filename.startswith(ENGINE) else None

    def line(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        """Count a line, and raise if it is the one."""
        if event == "line":
            place = (frame.f_code.co_filename, frame.f_lineno)
            self.reached[place] = self.reached.get(place, 0) + 1
            if place == self._place and self.reached[place] == self._time and not self.raised:
                self.raised = True
                raise self._error
        return self.line

    def run(self, work: Callable[[], object]) -> BaseException | None:
        """Do something under the trace, and return what was raised."""
        before = sys.gettrace()
        sys.settrace(self.call)
        try:
            work()
        except BaseException as error:  # noqa: BLE001 -- it is judged
            return error.with_traceback(None)
        finally:
            sys.settrace(before)
            if self._error is not None:
                self._error.__traceback__ = None  # its frames would be holders
        return None


#: What is done under the trace, after what: each a word of `order_world`.
SCENES = {"enable": ("A", "E"), "import": ("E", "A"), "reload": ("EA", "R"), "disable": ("EA", "D")}


def steps(scene: str, subject: Subject) -> dict[tuple[str, int], int]:
    """Return the lines that a scene reaches, and how often. To be called in a child."""
    world = World(subject)
    before, word = SCENES[scene]
    _take(world, before)
    trace = Trace()
    raised = trace.run(lambda: _take(world, word))
    assert raised is None, raised
    return trace.reached


def _take(world: World, word: str) -> None:
    for letter in word:
        getattr(world, f"step_{letter.lower()}")()


def judge(scene: str, subject: Subject, place: tuple[str, int], time: int, kind: str) -> dict[str, Any]:
    """Raise at one step of a scene, and return what is wrong afterwards. To be called in a child."""
    world = World(subject)
    before, word = SCENES[scene]
    _take(world, before)
    trace = Trace(place, time, ERRORS[kind]("injected"))
    logged = _listen()
    raised = trace.run(lambda: _take(world, word))
    if scene == "disable" and raised is None:
        # What could not be put back has been named, and is not ours to put back any more.
        if world.faults() and not any("left behind by" in line for line in logged):
            return {
                "wrong": [f"left without a word: {fault}" for fault in world.faults()],
                "hit": trace.raised,
            }
        return {"wrong": [], "named": bool(world.faults()), "hit": trace.raised}
    wrong = list(_wrong_now(world, scene, raised)) if trace.raised else []
    world.engine.disable()
    wrong += [f"after disable: {fault}" for fault in world.faults()]
    try:
        _take(world, "IE")
    except BaseException as error:  # noqa: BLE001 -- it is judged
        wrong.append(f"enabled again: {type(error).__name__}: {error}")
    else:
        # After a reload that was taken back, an alias is one of an earlier import: that is said.
        wrong += [f"enabled again: {fault}" for fault in world.faults() if not world.reported()]
    world.engine.disable()
    wrong += [f"at the end: {fault}" for fault in world.faults()]
    return {
        "wrong": wrong,
        "raised": type(raised).__name__ if raised is not None else "",
        "hit": trace.raised,
    }


def _listen() -> list[str]:
    """Return the list that gets the lines of the log from now on."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("overlay")
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    return lines


def _wrong_now(world: World, scene: str, raised: BaseException | None) -> Any:
    """Yield what is wrong just after the exception: all or nothing, and said."""
    engine, name = world.engine, world.subject.module
    status = engine.status()
    if scene == "disable":
        return  # it was raised, and the next call goes on
    states = {patch.state for patch in status.patches}
    core = sys.modules.get(name)
    if core is None:
        if raised is None:
            yield "the import failed without a word"
        return
    ours = [site for site in world.subject.sites if world.is_ours(core, site)]
    if ours and len(ours) < len(world.subject.sites):
        yield f"half of it is in place: {ours}"
    elif ours:
        if "applied" in states:
            yield from world.faults()
    elif states & {"applied"}:
        yield f"nothing is in place, and the ledger says {states}"
    elif not states & {"failed", "skipped"} and raised is None:
        yield f"nothing is in place, nothing was raised, and the ledger says {states or 'nothing'}"
