"""Is the start-up file of this installation active, and if not, why?

The answer comes from a fresh interpreter: it is what a worker would find.
"""

from __future__ import annotations

import os
import sys

from overlay import _version
from overlay.errors import SelectionError
from overlay.launch.interpreters import Answer, Interpreter, armed_environment, ask
from overlay.model import settings
from overlay.model.record import Record

#: What the start-up files are called, beside their endings.
NAME = "overlay-startup"


class Diagnosis(Record):
    """What `overlay doctor` found of the start-up file."""

    active: bool
    #: Why it is not active, and what to do about it; empty if it is.
    reason: str
    #: Where the start-up file lies, empty if it is nowhere that Python looks.
    file: str
    #: Where the package lies.
    package: str
    python: str
    #: What a person should know about the settings in the environment.
    remarks: tuple[str, ...] = ()


def why_unarmed() -> str:
    """Return why a new process of this Python is not armed at its start, empty if it is."""
    try:
        return diagnose().reason
    except Exception as error:  # noqa: BLE001 -- no job may fail of a question
        return f"none can be asked ({error!r})"


def diagnose() -> Diagnosis:
    """Start an interpreter as a launcher would, and say whether overlay was armed in it."""
    package = os.path.dirname(os.path.abspath(_version.__file__))
    import site

    folders = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    ending = ".start" if sys.version_info >= (3, 15) else ".pth"
    places = [os.path.join(folder, NAME + ending) for folder in folders]
    file = next((place for place in places if os.path.exists(place)), "")
    flags = (("no_site", "-S"), ("isolated", "-I"))
    options = tuple(option for flag, option in flags if getattr(sys.flags, flag))
    answer = ask(Interpreter(path=sys.executable, options=options), armed_environment())
    if answer.said:
        sys.stderr.write(f"{answer.said}\n")
    started = answer.started
    here = os.path.join(package, "launch", "startup.py")
    if started and os.path.realpath(started) == os.path.realpath(here):
        reason = ""
    elif started:
        reason = f"it starts another copy of overlay, {os.path.dirname(started)}: uninstall one of the two"
    elif sys.flags.no_site:
        reason = "this interpreter runs with -S, which reads no start-up files: start it without"
    elif file:
        reason = f"{file} is there and was not run: look for what Python prints when it starts with -v"
    else:
        reason = _why_missing(package, folders)
    return Diagnosis(
        active=not reason,
        reason=reason,
        file=file,
        package=package,
        python=sys.executable,
        remarks=tuple(_remarks()),
    )


def refusal(interpreter: Interpreter, answer: Answer) -> str:
    """Return why a Python that was asked is not enabled, and the way out; empty if it is."""
    if answer.enabled:
        return ""
    shown = " ".join((interpreter.path, *interpreter.options))
    if answer.said:
        return f"{shown} says: {answer.said.removeprefix('overlay: ')}"
    if "-S" in interpreter.options:
        return f"{shown} reads no start-up files: leave out -S"
    if interpreter.behind and not answer.other:
        return (
            f"{' '.join((*interpreter.behind, shown))} does not get the variables OVERLAY...: leave out env"
        )
    if not answer.other:
        return diagnose().reason or f"{shown} was not enabled, and does not say why"
    return (
        f"{interpreter.path} is another Python, and starts no overlay: install overlay there as well, or "
        f"start the job with this one, `overlay run {sys.executable} ...`"
    )


def _why_missing(package: str, folders: list[str]) -> str:
    beside = os.path.dirname(package)
    where = folders[0] if folders else "site-packages"
    if os.path.exists(os.path.join(beside, f"{NAME}.pth")):
        return (
            f"{beside} is not a folder in which Python reads start-up files (`pip install --target`, "
            f"PYTHONPATH): copy {NAME}.pth and {NAME}.start from it to {where}, or install without --target"
        )
    source = os.path.join(beside, "startup")
    if os.path.exists(os.path.join(source, f"{NAME}.pth")):
        return (
            f"overlay runs from a checkout, and editable installs carry no start-up file: "
            f"copy {NAME}.pth and {NAME}.start from {source} to {where}"
        )
    return f"no {NAME}.pth in {', '.join(folders) or 'any folder'}: install overlay again from its wheel"


def _remarks() -> list[str]:
    """Return sentences on settings that do not go together, or that cannot be understood."""
    found = settings.unknown()
    for read in (settings.armed, settings.strict, settings.log_level, settings.pin, settings.packs):
        try:
            read()
        except SelectionError as error:  # noqa: PERF203 -- each of them has its say
            found.append(str(error))
    if os.environ.get("OVERLAY_PIN") and not os.environ.get("OVERLAY"):
        found.append(
            "OVERLAY_PIN is set and OVERLAY is not: only a process that calls overlay.enable() is pinned"
        )
    return found
