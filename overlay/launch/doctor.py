"""Is a Python process that starts here and now patched? The checks cover all that could be in the way."""

from __future__ import annotations

import os
import re
import site
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from tempfile import TemporaryFile
from typing import IO

from overlay import _version
from overlay.errors import OverlayError
from overlay.launch.interpreter import LAUNCHERS, Interpreter, interpreter_of, on_path
from overlay.model import settings
from overlay.model.record import Record
from overlay.model.text import counted, listed
from overlay.records.lock import take_from, writer
from overlay.records.pin import Pin
from overlay.runtime.engine import Engine
from overlay.source.decide import Installed
from overlay.source.registry import load_patches
from overlay.verdict import Verdict

#: Where the package lies.
PACKAGE = os.path.dirname(os.path.abspath(_version.__file__))
#: Our version of Python.
_VERSION = ".".join(map(str, sys.version_info[:2]))
#: What overlay prints: a line, and more of it below.
_SAID = re.compile(r"^overlay: .*(?:\n  .*)*", re.MULTILINE)
#: The name of the start-up files, without their endings.
_NAME = "overlay-startup"


class Reply(Record):
    """What a Python said of itself."""

    #: Its own path.
    python: str
    #: Where its overlay would start from, empty if no start-up file ran.
    started: str
    #: Whether it is enabled.
    enabled: bool
    #: What overlay printed in it.
    said: str
    #: The environment that it belongs to, as its `sys.prefix` has it.
    prefix: str
    #: Its version, as `3.12`: one folder may hold two of them, with packages of their own. Empty: not known.
    version: str

    @property
    def other(self) -> bool:
        """Whether it is another environment than ours: that may have another overlay, or none."""
        return self.prefix != os.path.realpath(sys.prefix) or self.version not in ("", _VERSION)


#: Seconds that a Python may take to start, from a file system that is slow.
_PATIENCE = 300
#: Lines that a Python answers with.
_ANSWERS = 5
_PROBE = (
    "import os, sys; m = sys.modules.get('overlay.launch.startup'); "
    "p = sys.modules.get('overlay.runtime.process'); "
    "enabled = str(int(p is not None and p.here().enabled)); "
    "version = '%d.%d' % sys.version_info[:2]; "
    "said = enabled, sys.executable, sys.prefix, version, m.__file__ if m else ''; "
    # sys.stdout may lead elsewhere, or be unable to print a path.
    "os.write(1, os.fsencode('\\n'.join(('overlay-probe', *said, ''))))"
)


def armed_environment() -> dict[str, str]:
    """Return the environment of this process, armed, without any other setting and with no patch selected."""
    environ = {name: text for name, text in os.environ.items() if not name.startswith("OVERLAY")}
    return {**environ, "OVERLAY": "1", "OVERLAY_PATCHES": "none"}


def ask(interpreter: Interpreter, environ: Mapping[str, str]) -> Reply:
    """Start a Python as a command would, under its environment, and return what became of it.

    Raises `OSError` if it cannot be started, or not within `_PATIENCE`.
    """
    words = (*interpreter.behind, *interpreter.by, interpreter.path, *interpreter.options)
    # Of a pipe, a process in the background would hold one end.
    with _scratch() as output, _scratch() as errors:
        try:
            done = subprocess.run(
                [*words, "-c", _PROBE], env={**environ}, timeout=_PATIENCE, check=False,
                stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
                start_new_session=True,  # an interactive shell would take the terminal
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"{interpreter.path} did not start within {_PATIENCE} s") from error
        text, heard = (_read(file) for file in (output, errors))
    found = text.rpartition("overlay-probe\n")[2].split("\n")
    said = "\n".join(_SAID.findall(heard))
    if len(found) < _ANSWERS or "overlay-probe\n" not in text:
        if not said:
            status = f"ended with status {done.returncode}"
            raise ChildProcessError(f"{interpreter.path} is no Python, or {status} as it started")
        # It belongs to the environment that it lies in.
        beside = os.path.dirname(os.path.dirname(os.path.abspath(interpreter.path)))
        found = ["0", interpreter.path, beside, "", ""]
    enabled, python, prefix, version, started, *_ = found
    return Reply(
        python=python, started=started, enabled=enabled == "1", said=said, prefix=os.path.realpath(prefix),
        version=version,
    )  # fmt: skip


def _scratch() -> IO[bytes]:
    """Open a file of its own, in memory if there may be no folder to write to."""
    with suppress(AttributeError, OSError):  # an old kernel may have none, below a newer image
        return open(os.memfd_create("overlay"), "w+b")
    return TemporaryFile()


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return os.fsdecode(file.read())


def refusal(interpreter: Interpreter, answer: Reply) -> str:
    """Return why a Python that was asked is not enabled, and the way out; empty if it is."""
    shown = " ".join((*interpreter.behind, interpreter.path, *interpreter.options))
    if answer.enabled:
        return ""
    if answer.said:
        return f"{shown} says: {answer.said.removeprefix('overlay: ')}"
    if "-S" in interpreter.options:
        return f"{shown} reads no start-up files: leave out -S"
    if answer.other:
        python = answer.python or interpreter.path
        return (
            f"{python} is a different Python, without overlay: install overlay there as well, or "
            f"have the job start {sys.executable}, say by putting its folder first on the PATH"
        )
    reason = why_unarmed()
    hides = {"-s", "-I"}.intersection(interpreter.options) or "PYTHONNOUSERSITE=" in shown
    here, users = map(os.path.realpath, (os.path.dirname(PACKAGE), site.getusersitepackages()))
    if not reason and hides and here == users:
        way_out = "install overlay elsewhere, or leave out -s, -I and PYTHONNOUSERSITE"
        reason = f"{shown} does not read {os.path.dirname(PACKAGE)}, where overlay is: {way_out}"
    if not reason and (interpreter.behind or interpreter.by):
        way_out = "leave out env"
        if not interpreter.behind:
            way_out = f"see what {interpreter.by[0]} reads at its start"
        reason = f"{shown} does not get the variables OVERLAY...: {way_out}"
    return reason or f"{shown} was not enabled, and does not say why"


def why_unarmed() -> str:
    """Return why a new process of this Python is not armed at its start, empty if it is. Raises nothing."""
    try:
        options = ("-S",) * sys.flags.no_site + ("-I",) * sys.flags.isolated
        answer = ask(Interpreter(path=sys.executable, options=options), armed_environment())
    except Exception as error:  # noqa: BLE001 -- a question must not fail a job
        return f"none can be asked ({error!r})"
    if answer.said:
        sys.stderr.write(f"{answer.said}\n")
    here = os.path.join(PACKAGE, "launch", "startup.py")
    if answer.started and os.path.realpath(answer.started) == os.path.realpath(here):
        return ""
    if answer.started:
        other = os.path.dirname(answer.started)
        return f"it starts another copy of overlay, {other}: uninstall one of the two"
    if sys.flags.no_site:
        return "this interpreter runs with -S, which reads no start-up files: start it without"
    if file := startup_file():
        return f"{file} is there and was not run: look for what Python prints when it starts with -v"
    return _why_missing()


def _why_missing() -> str:
    folders, beside = _folders(), os.path.dirname(PACKAGE)
    where = folders[0] if folders else "site-packages"
    if os.path.exists(os.path.join(beside, f"{_NAME}.pth")):
        return (
            f"{beside} is not a folder in which Python reads start-up files (`pip install --target`, "
            f"PYTHONPATH): copy {_NAME}.pth and {_NAME}.start from it to {where}, or install without --target"
        )
    source = os.path.join(beside, "startup")
    if os.path.exists(os.path.join(source, f"{_NAME}.pth")):
        return (
            f"overlay runs from a checkout, and editable installs carry no start-up file: "
            f"copy {_NAME}.pth and {_NAME}.start from {source} to {where}"
        )
    return f"no {_NAME}.pth in {', '.join(folders) or 'any folder'}: install overlay again from its wheel"


def startup_file() -> str:
    """Return where the start-up file lies, empty if it is nowhere that Python looks."""
    ending = ".start" if sys.version_info >= (3, 15) else ".pth"
    places = [os.path.join(folder, _NAME + ending) for folder in _folders()]
    return next((place for place in places if os.path.exists(place)), "")


def _folders() -> list[str]:
    """Return the folders in which Python reads start-up files."""
    return [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]


_PLAN = "overlay plan # what is decided, patch by patch"

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
    """Check everything that could leave a process of a job unpatched. Never raises."""
    projects: tuple[Installed, ...] = ()
    with suppress(OverlayError):  # which a check names
        pin = settings.pin()
        if pin and not pin.startswith(settings.DIGEST_PREFIX) and not settings.armed():
            take_from(pin, os.environ, load_patches())  # as `overlay run` does
    with suppress(OverlayError):
        projects = engine.installed()
    own = [_startup_file(), _variable(), _settings(engine)]
    own.append(_pin(engine) if own[-1].answer == YES else _check("pin", NONE, "not compared"))
    settled = all(check.answer != NO for check in own)
    checks = (*own, *_pythons(settled=settled), _upstreams(engine, projects))
    todo = dict.fromkeys(check.todo for check in checks if check.todo)
    armed = all(check.answer != NO for check in checks)
    todo |= dict.fromkeys([_PLAN] * armed)
    return Checkup(
        armed=armed, checks=checks, package=PACKAGE, python=sys.executable, projects=projects, todo=(*todo,)
    )


def _check(name: str, answer: str, found: str, todo: str = "") -> Check:
    return Check(name=name, answer=answer, found=found, todo=todo)


def _startup_file() -> Check:
    reason = why_unarmed()
    found = startup_file() or ("is missing from site-packages" if reason else "is read")
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
    """Check every setting, including the selection and the packs."""
    try:
        settings.check()
        engine.tested()  # which reads the file that OVERLAY_TRUST names
        chosen = engine.chosen()
    except OverlayError as error:
        return _check("selection", NO, str(error), "correct that setting, or unset it")
    found = f"{' '.join(chosen.terms) or 'all'}: {counted(len(chosen.ids), 'patch')}"
    if not chosen.ids:
        return _check("selection", NO, found, "nothing is selected: unset OVERLAY_PATCHES, or name patches")
    odd = settings.unknown()  # which keeps no process from being patched
    warning = f"; warning: {'; '.join(odd)}" if odd else ""
    todo = "correct the name of that variable, or unset it" if odd else ""
    return _check("selection", YES, f"{found}{warning}", todo)


def _pin(engine: Engine) -> Check:
    wanted = settings.pin()
    if not wanted:
        return _check("pin", NONE, "none; `overlay lock` writes one")
    try:
        chosen = engine.chosen()
        Pin(wanted, [engine.known()[name] for name in chosen.ids], chosen)
    except OverlayError as error:
        todo = "give OVERLAY_PIN the lock that belongs here, or write it: "
        return _check("pin", NO, str(error), todo + writer(wanted, "--update"))
    return _check("pin", YES, f"{wanted} (its upstreams are compared when they are imported)")


def _pythons(*, settled: bool) -> list[Check]:
    """Ask the Pythons that `python`, `python3` and launchers start: they need not be this one.

    `settled`: whether the settings here are right, as far as this process can tell.
    """
    checks: dict[str, Check] = {}
    own = [(os.path.basename(one.path), one) for one in on_path()]
    if ranks := os.environ.get("PYTHON_EXEC"):  # which torchrun starts
        own.append(("PYTHON_EXEC", Interpreter(path=ranks)))
    launchers = [(name, interpreter_of([name])) for name in LAUNCHERS]
    for name, interpreter in [*own, *((name, one) for name, one in launchers if one)]:
        try:
            answer = ask(interpreter, armed_environment())
            if answer.enabled and (answer.other or settled):  # the settings may not suit it, or its start
                answer = ask(interpreter, {**os.environ, "OVERLAY": "1"})
        except OSError as error:
            checks[name] = _check(name, NO, str(error), f"repair {interpreter.path}")
            continue
        if (key := f"{answer.prefix} {answer.version}") not in checks:
            reason = refusal(interpreter, answer)
            found = f"{interpreter.path}, {'without' if reason else 'with'} overlay"
            checks[key] = _check(name, NO if reason else YES, found, reason)
    return [*checks.values()]


def _upstreams(engine: Engine, projects: tuple[Installed, ...]) -> Check:
    if not projects:
        return _check("upstreams", NONE, "not looked for")
    wanted = {target.project.name for patch in engine.known().values() for target in patch.targets}
    places: dict[str, list[str]] = {}
    for one in projects:
        if one.project in wanted and one.version:
            places.setdefault(one.where, []).append(f"{one.project} {one.version}")
    asked: list[Verdict] = []
    is_strict = False
    with suppress(OverlayError):  # which another check names
        is_strict, plan = settings.strict(), engine.plan()
        own = {*plan.selection}.difference(plan.companions)
        asked = [one for one in plan.verdicts if one.patch in own]
    if not places or (asked and all(one.verdict == "not-installed" for one in asked)):
        found = f"none that a {'selected ' * bool(places)}patch is for, on the path of this Python"
        return _check("upstreams", NONE, f"{found} (a job may add to it: audit --site DIR)")
    found = "; ".join(f"{', '.join(them)} in {where}" for where, them in places.items())
    loud = [one.patch for one in asked if one.loud]
    if not loud:
        return _check("upstreams", YES, found)
    what = f"{found}; {counted(len(loud), 'selected patch')} cannot be applied: {listed(loud, 3)}"
    stops = is_strict or not any(one.verdict == "apply" for one in asked)
    return _check("upstreams", NO if stops else YES, what, _PLAN)
