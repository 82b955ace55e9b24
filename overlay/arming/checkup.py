"""Whether a Python process that starts here and now is patched: all that could be in the way is asked."""

from __future__ import annotations

import os
import sys

from overlay.arming.command import ask, on_path, refusal
from overlay.arming.doctor import Diagnosis, diagnose
from overlay.base import settings
from overlay.base.record import Record
from overlay.deciding.installed import Installed  # noqa: TC001 -- a field type
from overlay.errors import OverlayError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from overlay.enabling.engine import Engine

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


def examine(engine: Engine) -> Checkup:
    """Look at everything by which a process of a job could be left unpatched. Never raises."""
    found = diagnose()
    settled = _settings(engine)
    projects = _projects(engine)
    pinned = _pin(engine) if settled.answer == YES else Check(name="pin", answer=NONE, found="not compared")
    checks = (
        Check(
            name="start-up file",
            answer=NO if found.reason else YES,
            found=found.file or "there is none where Python reads such files",
            todo=found.reason,
        ),
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
        todo=tuple(todo) or ("overlay status # what is armed, patch by patch",),
    )


def _copies(found: Diagnosis) -> Check:
    """Look for another overlay on the path: the one that is imported need not be the one that arms."""
    mine = os.path.realpath(found.package)
    others = []
    for folder in sys.path:
        package = os.path.join(folder or os.curdir, "overlay")
        if os.path.isfile(os.path.join(package, "arming", "startup.py")):
            others.append(os.path.realpath(package))
    others = sorted({*others} - {mine})
    if not others:
        return Check(name="copies", answer=YES, found=f"one, {found.package}")
    them = ", ".join(others)
    return Check(
        name="copies",
        answer=NO,
        found=f"{1 + len(others)}: {found.package}, {them}",
        todo=f"uninstall one of the copies of overlay: {found.package} is this one, and there is {them}",
    )


def _variable() -> Check:
    said = os.environ.get("OVERLAY")
    try:
        armed = settings.armed()
    except OverlayError as error:
        return Check(name="OVERLAY", answer=NO, found=str(error), todo="set OVERLAY=1")
    shown = "is not set" if said is None else f"is {said!r}"
    if armed:
        return Check(name="OVERLAY", answer=YES, found=shown)
    todo = "put `overlay run` before the command that starts the job, or set OVERLAY=1 in its environment"
    return Check(name="OVERLAY", answer=NO, found=shown, todo=todo)


def _settings(engine: Engine) -> Check:
    """Read every setting, the selection and the packs among them."""
    try:
        settings.strict()
        settings.log_level()
        settings.dynamic_cp()
        settings.loss_kernel()
        settings.pin()
        chosen = engine.chosen()
    except OverlayError as error:
        return Check(name="selection", answer=NO, found=str(error), todo="correct that setting, or unset it")
    said = " ".join(chosen.terms) or "all"
    count = len(chosen.ids)
    found = f"{said}: {count} patch{'es' if count != 1 else ''}"
    odd = settings.unknown()
    if odd:
        todo = "correct the name of that variable, or unset it"
        return Check(name="selection", answer=NO, found=f"{found}, but {'; '.join(odd)}", todo=todo)
    if not count:
        todo = "nothing is selected: unset OVERLAY_PATCHES, or name patches"
        return Check(name="selection", answer=NO, found=found, todo=todo)
    return Check(name="selection", answer=YES, found=found)


def _pin(engine: Engine) -> Check:
    wanted = settings.pin()
    if not wanted:
        return Check(name="pin", answer=NONE, found="none; `overlay lock` writes one")
    from overlay.pinning.pin import Pin

    try:
        Pin(wanted, [engine.known()[name] for name in engine.chosen().ids])
    except OverlayError as error:
        todo = (
            "give OVERLAY_PIN the lock that belongs here, or write it: `OVERLAY_PIN= overlay lock --update`"
        )
        return Check(name="pin", answer=NO, found=str(error), todo=todo)
    return Check(name="pin", answer=YES, found=wanted)


def _pythons() -> tuple[Check, ...]:
    """Ask the Pythons that commands without a path start: they need not be the one that runs this."""
    environ = {name: text for name, text in os.environ.items() if not name.startswith("OVERLAY")}
    environ.update(OVERLAY="1", OVERLAY_PATCHES="none")
    checks: list[Check] = []
    seen: set[str] = set()
    for interpreter in on_path():
        name = os.path.basename(interpreter.path)
        try:
            answer = ask(interpreter, environ)
            reason = refusal(interpreter, answer)
        except OSError as error:
            checks.append(Check(name=name, answer=NO, found=str(error), todo=f"repair {interpreter.path}"))
            continue
        if answer.prefix in seen:
            continue
        seen.add(answer.prefix)
        found = f"{interpreter.path}, which starts {'no overlay' if reason else 'overlay'}"
        checks.append(Check(name=name, answer=NO if reason else YES, found=found, todo=reason))
    return tuple(checks)


def _projects(engine: Engine) -> tuple[Installed, ...]:
    try:
        return engine.installed()
    except OverlayError:
        return ()


def _upstreams(engine: Engine, projects: tuple[Installed, ...]) -> Check:
    if not projects:
        return Check(name="upstreams", answer=NONE, found="not looked for")
    wanted = {target.project.name for patch in engine.known().values() for target in patch.targets}
    seen = [one for one in projects if one.project in wanted and one.version]
    if not seen:
        found = "none that a patch is for, on the path of this Python"
        return Check(name="upstreams", answer=NONE, found=f"{found} (a job may add to it: audit --site DIR)")
    places: dict[str, list[str]] = {}
    for one in seen:
        places.setdefault(one.where, []).append(f"{one.project} {one.version}")
    found = "; ".join(f"{', '.join(them)} in {where}" for where, them in places.items())
    return Check(name="upstreams", answer=YES, found=found)


def _ray(found: Diagnosis, projects: tuple[Installed, ...], wrong: list[str]) -> Check:
    """Say whether the driver of a job arms its workers. `wrong`: checks that keep a driver from it."""
    from overlay.arming.ray_jobs import knows_source

    name = "Ray workers"
    ray = next((one for one in projects if one.project == "ray" and one.version), None)
    if ray is None:
        return Check(name=name, answer=NONE, found="Ray is not installed" if projects else "not looked for")
    if not knows_source():
        return Check(
            name=name,
            answer=NO,
            found=f"Ray {ray.version} starts jobs in a way that overlay does not know",
            todo="pass runtime_env=overlay.ray.runtime_env() to ray.init",
        )
    if found.reason:
        return Check(name=name, answer=NO, found="they would read no start-up file, as nothing does here")
    said = os.environ.get("OVERLAY")
    if not _asks_for_it():
        where = "is not set" if said is None else f"is {said!r}"
        return Check(name=name, answer=NO, found=f"their driver would not be enabled: OVERLAY {where}")
    if wrong:
        return Check(name=name, answer=NO, found=f"their driver would not be enabled: see {wrong[0]}")
    return Check(
        name=name,
        answer=YES,
        found=f"Ray {ray.version}: an enabled driver arms them; each node needs overlay in its Python",
    )


def _asks_for_it() -> bool:
    """Return whether `OVERLAY` asks for it, and can be understood."""
    try:
        return settings.armed()
    except OverlayError:
        return False
