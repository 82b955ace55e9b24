"""Is a Python process that starts here and now patched? All that could be in the way is asked."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from overlay.errors import OverlayError
from overlay.launch.interpreters import (
    PACKAGE,
    armed_environment,
    ask,
    on_path,
    refusal,
    startup_file,
    why_unarmed,
)
from overlay.model import settings
from overlay.model.record import Record
from overlay.source.installed import Installed  # noqa: TC001 -- a field type

TYPE_CHECKING = False
if TYPE_CHECKING:
    from overlay.runtime.engine import Engine

#: What a check comes to: all is well, something is wrong, and there is nothing to say about it here.
YES, NO, NONE = "yes", "no", "-"


class Check(Record):
    """One thing that could be in the way."""

    #: What is looked at.
    name: str
    answer: str
    #: What was found.
    found: str
    #: What to do about it, or about a warning in what was found; empty if all is well.
    todo: str = ""


class Checkup(Record):
    """What `overlay doctor` found."""

    #: Whether every check that has an answer has a good one.
    armed: bool
    checks: tuple[Check, ...]
    #: Where the package lies.
    package: str
    python: str
    projects: tuple[Installed, ...]
    #: What to do, a sentence each, or what comes next if nothing is wrong.
    todo: tuple[str, ...]


def examine(engine: Engine) -> Checkup:
    """Look at everything by which a process of a job could be left unpatched. Never raises."""
    projects: tuple[Installed, ...] = ()
    with suppress(OverlayError):
        projects = engine.installed()
    own = [_startup_file(), _variable(), _settings(engine)]
    own.append(_pin(engine) if own[-1].answer == YES else _check("pin", NONE, "not compared"))
    wrong = [check for check in own if check.answer == NO]
    checks = (*own, *_pythons(), _upstreams(engine, projects), _ray(projects, wrong))
    todo = [check.todo for check in checks if check.todo]
    armed = all(check.answer != NO for check in checks)
    if armed:
        todo.append("overlay plan # what is decided, patch by patch")
    return Checkup(
        armed=armed,
        checks=checks,
        package=PACKAGE,
        python=sys.executable,
        projects=projects,
        todo=tuple(dict.fromkeys(todo)),
    )


def _check(name: str, answer: str, found: str, todo: str = "") -> Check:
    return Check(name=name, answer=answer, found=found, todo=todo)


def _startup_file() -> Check:
    reason = why_unarmed()
    found = startup_file() or "is missing from site-packages"
    return _check("start-up file", NO if reason else YES, found, reason)


def _variable() -> Check:
    said = os.environ.get("OVERLAY")
    found = "is not set" if said is None else f"is {said!r}"
    try:
        if settings.armed():
            return _check("OVERLAY", YES, found)
    except OverlayError as error:
        return _check("OVERLAY", NO, str(error), "set OVERLAY=1")
    if os.environ.get("OVERLAY_PIN"):
        found += ", so OVERLAY_PIN holds only a process that calls overlay.enable()"
    todo = "put `overlay run` before the command that starts the job, or set OVERLAY=1 in its environment"
    return _check("OVERLAY", NO, found, todo)


def _settings(engine: Engine) -> Check:
    """Read every setting, the selection and the packs among them."""
    try:
        settings.read()
        engine.tested()  # which reads the file that OVERLAY_TRUST names
        chosen = engine.chosen()
    except OverlayError as error:
        return _check("selection", NO, str(error), "correct that setting, or unset it")
    count = len(chosen.ids)
    found = f"{' '.join(chosen.terms) or 'all'}: {count} patch{'es' if count != 1 else ''}"
    if not count:
        todo = "nothing is selected: unset OVERLAY_PATCHES, or name patches"
        return _check("selection", NO, found, todo)
    if odd := settings.unknown():  # which keeps no process from being patched
        todo = "correct the name of that variable, or unset it"
        return _check("selection", YES, f"{found}; warning: {'; '.join(odd)}", todo)
    return _check("selection", YES, found)


def _pin(engine: Engine) -> Check:
    wanted = settings.pin()
    if not wanted:
        return _check("pin", NONE, "none; `overlay lock` writes one")
    from overlay.records.pin import Pin

    try:
        Pin(wanted, [engine.known()[name] for name in engine.chosen().ids])
    except OverlayError as error:
        todo = (
            "give OVERLAY_PIN the lock that belongs here, or write it: `OVERLAY_PIN= overlay lock --update`"
        )
        return _check("pin", NO, str(error), todo)
    return _check("pin", YES, wanted)


def _pythons() -> list[Check]:
    """Ask the Pythons that commands without a path start: they need not be the one that runs this."""
    checks: dict[str, Check] = {}
    for interpreter in on_path():
        name = os.path.basename(interpreter.path)
        try:
            answer = ask(interpreter, armed_environment())
        except OSError as error:
            checks[name] = _check(name, NO, str(error), f"repair {interpreter.path}")
            continue
        if answer.prefix not in checks:
            reason = refusal(interpreter, answer)
            found = f"{interpreter.path}, {'without' if reason else 'with'} overlay"
            checks[answer.prefix] = _check(name, NO if reason else YES, found, reason)
    return [*checks.values()]


def _upstreams(engine: Engine, projects: tuple[Installed, ...]) -> Check:
    if not projects:
        return _check("upstreams", NONE, "not looked for")
    wanted = {target.project.name for patch in engine.known().values() for target in patch.targets}
    places: dict[str, list[str]] = {}
    for one in projects:
        if one.project in wanted and one.version:
            places.setdefault(one.where, []).append(f"{one.project} {one.version}")
    if not places:
        found = "none that a patch is for, on the path of this Python"
        return _check("upstreams", NONE, f"{found} (a job may add to it: audit --site DIR)")
    found = "; ".join(f"{', '.join(them)} in {where}" for where, them in places.items())
    return _check("upstreams", YES, found)


def _ray(projects: tuple[Installed, ...], wrong: list[Check]) -> Check:
    """Say whether the driver of a job arms its workers. `wrong`: checks that keep a driver from it."""
    name = "Ray workers"
    ray = next((one for one in projects if one.project == "ray" and one.version), None)
    if ray is None:
        return _check(name, NONE, "Ray is not installed" if projects else "not looked for")
    if wrong:
        return _check(name, NO, f"the driver would not be patched (see {wrong[0].name})")
    found = f"Ray {ray.version}: an enabled driver has them patched; each node needs overlay in its Python"
    return _check(name, YES, found)
