"""Is a Python process that starts here and now patched? All that could be in the way is asked."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from overlay.errors import OverlayError
from overlay.launch.interpreters import armed_environment, ask, on_path
from overlay.launch.startup_file import Diagnosis, diagnose, refusal
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
    #: What to do about it, empty if nothing is wrong.
    todo: str = ""


class Checkup(Diagnosis):
    """What `overlay doctor` found. The fields of a diagnosis are about the start-up file."""

    #: Whether every check that has an answer has a good one.
    armed: bool
    checks: tuple[Check, ...]
    projects: tuple[Installed, ...]
    #: What to do, a sentence each, or what comes next if nothing is wrong.
    todo: tuple[str, ...]


def _yes(name: str, found: str) -> Check:
    return Check(name=name, answer=YES, found=found)


def _no(name: str, found: str, todo: str = "") -> Check:
    return Check(name=name, answer=NO, found=found, todo=todo)


def _none(name: str, found: str) -> Check:
    return Check(name=name, answer=NONE, found=found)


def examine(engine: Engine) -> Checkup:
    """Look at everything by which a process of a job could be left unpatched. Never raises."""
    found = diagnose()
    settled = _settings(engine)
    projects: tuple[Installed, ...] = ()
    with suppress(OverlayError):
        projects = engine.installed()
    pinned = _pin(engine) if settled.answer == YES else _none("pin", "not compared")
    where = found.file or "is missing from site-packages"
    name = "start-up file"
    checks = (
        _no(name, where, found.reason) if found.reason else _yes(name, where),
        _copies(found),
        _variable(),
        settled,
        pinned,
        *_pythons(),
        _upstreams(engine, projects),
        _ray(found, projects, [check.name for check in (settled, pinned) if check.answer == NO]),
    )
    wrong = [check for check in checks if check.answer == NO]
    todo = list(dict.fromkeys(check.todo for check in wrong if check.todo))
    return Checkup(
        **found.__dict__,
        armed=not wrong,
        checks=checks,
        projects=projects,
        todo=tuple(todo) or ("overlay plan # what is decided, patch by patch",),
    )


def _copies(found: Diagnosis) -> Check:
    """Look for another overlay on the path: the one that is imported need not be the one that arms."""
    packages = {os.path.realpath(os.path.join(folder or os.curdir, "overlay")) for folder in sys.path}
    packages -= {os.path.realpath(found.package)}
    others = [one for one in sorted(packages) if os.path.isfile(os.path.join(one, "launch", "startup.py"))]
    if not others:
        return _yes("copies", f"one, {found.package}")
    them = ", ".join(others)
    return _no(
        "copies",
        f"{1 + len(others)}: {found.package}, {them}",
        f"uninstall one of the copies of overlay: {found.package} is this one, and there is {them}",
    )


def _variable() -> Check:
    try:
        armed = settings.armed()
    except OverlayError as error:
        return _no("OVERLAY", str(error), "set OVERLAY=1")
    if armed:
        return _yes("OVERLAY", _as_set())
    todo = "put `overlay run` before the command that starts the job, or set OVERLAY=1 in its environment"
    return _no("OVERLAY", _as_set(), todo)


def _as_set() -> str:
    said = os.environ.get("OVERLAY")
    return "is not set" if said is None else f"is {said!r}"


def _settings(engine: Engine) -> Check:
    """Read every setting, the selection and the packs among them."""
    try:
        settings.read()
        chosen = engine.chosen()
    except OverlayError as error:
        return _no("selection", str(error), "correct that setting, or unset it")
    count = len(chosen.ids)
    found = f"{' '.join(chosen.terms) or 'all'}: {count} patch{'es' if count != 1 else ''}"
    if odd := settings.unknown():
        todo = "correct the name of that variable, or unset it"
        return _no("selection", f"{found}, but {'; '.join(odd)}", todo)
    if not count:
        return _no("selection", found, "nothing is selected: unset OVERLAY_PATCHES, or name patches")
    return _yes("selection", found)


def _pin(engine: Engine) -> Check:
    wanted = settings.pin()
    if not wanted:
        return _none("pin", "none; `overlay lock` writes one")
    from overlay.records.pin import Pin

    try:
        Pin(wanted, [engine.known()[name] for name in engine.chosen().ids])
    except OverlayError as error:
        todo = (
            "give OVERLAY_PIN the lock that belongs here, or write it: `OVERLAY_PIN= overlay lock --update`"
        )
        return _no("pin", str(error), todo)
    return _yes("pin", wanted)


def _pythons() -> tuple[Check, ...]:
    """Ask the Pythons that commands without a path start: they need not be the one that runs this."""
    checks: list[Check] = []
    seen: set[str] = set()
    for interpreter in on_path():
        name = os.path.basename(interpreter.path)
        try:
            answer = ask(interpreter, armed_environment())
            reason = refusal(interpreter, answer)
        except OSError as error:
            checks.append(_no(name, str(error), f"repair {interpreter.path}"))
            continue
        if answer.prefix in seen:
            continue
        seen.add(answer.prefix)
        found = f"{interpreter.path}, which starts {'no overlay' if reason else 'overlay'}"
        checks.append(_no(name, found, reason) if reason else _yes(name, found))
    return tuple(checks)


def _upstreams(engine: Engine, projects: tuple[Installed, ...]) -> Check:
    if not projects:
        return _none("upstreams", "not looked for")
    wanted = {target.project.name for patch in engine.known().values() for target in patch.targets}
    places: dict[str, list[str]] = {}
    for one in projects:
        if one.project in wanted and one.version:
            places.setdefault(one.where, []).append(f"{one.project} {one.version}")
    if not places:
        found = "none that a patch is for, on the path of this Python"
        return _none("upstreams", f"{found} (a job may add to it: audit --site DIR)")
    return _yes("upstreams", "; ".join(f"{', '.join(them)} in {where}" for where, them in places.items()))


def _ray(found: Diagnosis, projects: tuple[Installed, ...], wrong: list[str]) -> Check:
    """Say whether the driver of a job arms its workers. `wrong`: checks that keep a driver from it."""
    from overlay.launch.ray_jobs import knows_source

    name, unenabled = "Ray workers", "their driver would not be enabled"
    ray = next((one for one in projects if one.project == "ray" and one.version), None)
    if ray is None:
        return _none(name, "Ray is not installed" if projects else "not looked for")
    if not knows_source():
        unknown = f"Ray {ray.version} starts jobs in a way that overlay does not know"
        return _no(name, unknown, "pass runtime_env=overlay.ray.runtime_env() to ray.init")
    if found.reason:
        return _no(name, "they would read no start-up file, as nothing does here")
    if _variable().answer == NO:
        return _no(name, f"{unenabled}: OVERLAY {_as_set()}")
    if wrong:
        return _no(name, f"{unenabled}: see {wrong[0]}")
    return _yes(
        name, f"Ray {ray.version}: an enabled driver arms them; each node needs overlay in its Python"
    )
