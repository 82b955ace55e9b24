"""Is a Python process that starts here and now patched? The checks cover all that could be in the way."""

from __future__ import annotations

import os
import shlex
import site
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice, takewhile
from shutil import which
from tempfile import TemporaryFile
from typing import IO

from overlay import _version
from overlay.errors import OverlayError
from overlay.model import settings
from overlay.model.record import Record
from overlay.model.text import counted
from overlay.records.pin import Pin
from overlay.runtime.engine import Engine
from overlay.source.decide import Installed

#: Programs that start the command in their arguments, in the same environment and on the same machine.
STARTERS = (
    "chrt", "env", "flock", "gdb", "ionice", "nice", "nohup", "nsys", "numactl", "perf", "prlimit", "setsid",
    "stdbuf", "strace", "taskset", "time", "timeout", "unshare", "xargs",
)  # fmt: skip
#: Where the package lies.
PACKAGE = os.path.dirname(os.path.abspath(_version.__file__))
#: The name of the start-up files, without their endings.
_NAME = "overlay-startup"
#: Words before that command which are also names of programs.
_NO_PROGRAMS = ("false", "kill", "profile", "record", "stat", "test", "true")
#: Programs that can start ranks without Python.
_LAUNCHERS = ("accelerate", "deepspeed", "torchrun")
#: Shells without `"$@"`.
_OTHER_SHELLS = ("csh", "fish", "tcsh")
_SHELLS = ("ash", "bash", "dash", "ksh", "sh", "zsh", *_OTHER_SHELLS)
#: As what a script starts Python.
_NAMES = ("python", "python3")


class Interpreter(Record):
    """A Python that a command runs in."""

    #: How it is started.
    path: str
    #: Options of its own that matter here, such as `-S`.
    options: tuple[str, ...] = ()
    #: The words of `env` that start it: they decide which variables it gets.
    behind: tuple[str, ...] = ()
    #: The command of a shell that starts it, if that is to look for it.
    by: tuple[str, ...] = ()


def interpreter_of(words: Sequence[str], path: str | None = None) -> Interpreter | None:
    """Return the Python that a command runs in, by a PATH, `None` if that cannot be told."""
    words, env = behind_starters(words, path)
    command = _runner(words, path)
    program = which(command[0], path=path) if command and is_python(command[0]) else None
    if program is None:
        return None
    # `env` may set another PATH: it is to find a bare name itself.
    bare = env and not os.path.dirname(command[0])
    return Interpreter(path=command[0] if bare else program, options=_options(command[1:]), behind=env)


def shell_of(words: Sequence[str], path: str | None = None) -> Sequence[str]:
    """Return the command of the shell that a command runs in, by a PATH, nothing if that is none."""
    command = _runner(behind_starters(words, path)[0], path)
    return command if command and os.path.basename(command[0]) in _SHELLS else ()


def _runner(words: Sequence[str], path: str | None) -> Sequence[str]:
    """Return a command of Python or a shell as it is, and what the first line of any other one names."""
    program = which(words[0], path=path) if words else None
    if program is None:
        return ()
    return words if is_python(program) or os.path.basename(program) in _SHELLS else _first_line(program)


def _behind(words: Sequence[str], path: str | None) -> Sequence[str]:
    """Return the words behind the first one from the first that names a program, none if none does."""
    rest = range(1, len(words))
    found = (at for at in rest if words[at] not in _NO_PROGRAMS and which(words[at], path=path))
    return words[next(found, len(words)) :]


def behind_starters(words: Sequence[str], path: str | None) -> tuple[Sequence[str], tuple[str, ...]]:
    """Return the command behind all programs that start another, nothing if it cannot be found.

    With it come the words of `env` among them, which may take variables away.
    """
    env: tuple[str, ...] = ()
    while words and os.path.basename(words[0]) in STARTERS and which(words[0], path=path):
        command = _behind(words, path)
        if os.path.basename(words[0]) == "env":
            env += tuple(words[: len(words) - len(command)])
        words = command
    return words, env


def command_of_ranks(words: Sequence[str], environ: Mapping[str, str]) -> Sequence[str]:
    """Return the command that a launcher is told to start its ranks with, nothing if it is not told."""
    launched = False
    told = environ.get("PET_NO_PYTHON", "0").strip("0") != ""  # torchrun reads a number there
    for at, word in enumerate(words):
        launched = launched or "distributed" in word or word.endswith(_LAUNCHERS)
        # As argparse has it, which takes the beginning of an option for the option.
        long = word[:5] in ("--no-", "--no_") and "--no-python".startswith(word.replace("_", "-"))
        if launched and (told or long):
            return _behind(words[at:], environ.get("PATH"))
    return [environ["PYTHON_EXEC"]] if environ.get("PYTHON_EXEC") else []


def is_python(program: str) -> bool:
    """Return whether a program has a name of Python's, such as `python3.12`."""
    name = os.path.basename(program)
    return name.startswith("python") and not name.removeprefix("python").strip("0123456789.t")


def _options(words: Sequence[str]) -> tuple[str, ...]:
    """Return the options of an interpreter that can keep it from start-up files or packages."""
    found: list[str] = []
    rest = iter(words)
    for word in rest:
        if word[:1] != "-" or word[1:2] in ("", "-"):
            break
        # What follows one of these letters is its argument, and no other option.
        last = next((place for place, letter in enumerate(word) if letter in "cmWX"), len(word))
        found += [f"-{letter}" for letter in word[1:last] if letter in "EIPSs"]
        if word[last:] in ("W", "X"):
            next(rest, None)
        elif word[last : last + 1] in ("c", "m"):
            break
    return tuple(found)


def of_shell(shell: Sequence[str], environ: Mapping[str, str]) -> Iterable[Interpreter]:
    """Return what a script of a shell may start as `python` and `python3`.

    The shell itself is to find them, with its own options: files that it reads at its start may set the PATH,
    and there may be a function or an alias of that name.
    """
    if os.path.basename(shell[0]) in _OTHER_SHELLS:
        return on_path(environ.get("PATH"))
    command = [shell[0]]
    rest = iter(shell[1:])
    for word in takewhile(lambda word: word[:1] in ("-", "+") and word not in ("-", "--"), rest):
        letters = "" if word[:2] == "--" else word[1:]
        # Without what says where its commands come from.
        option = word[0] + letters.replace("c", "").replace("s", "") if letters else word
        values = [*islice(rest, letters.lower().count("o") + (word in ("--rcfile", "--init-file")))]
        command += [option, *values] if len(option) > 1 else []
    return [Interpreter(path=name, by=(*command, "-c", f'{name} "$@"')) for name in _NAMES]


def _first_line(program: str) -> list[str]:
    """Return the command that a script names in its first line, none if it names none."""
    try:
        with open(program, "rb") as file:
            first, second = (os.fsdecode(file.readline(1024)) for _ in range(2))
    except OSError:
        return []
    words = first[2:].split() if first.startswith("#!") else []
    if words and second.startswith("'''exec' "):
        # Installers write it so if a path is too long for a first line, or has a space in it.
        with suppress(ValueError):
            words = shlex.split(second.removeprefix("'''exec' "))[:1]
    if words and os.path.basename(words[0]) == "env":
        words = words[2 if words[1:2] == ["-S"] else 1 :]  # any other -S is Python's own
    return words


def on_path(path: str | None = None) -> tuple[Interpreter, ...]:
    """Return what `python` and `python3` are on a PATH, once if they are the same."""
    found: dict[tuple[str, str], Interpreter] = {}
    for program in (which(name, path=path) for name in _NAMES):
        if program is not None:
            key = (os.path.dirname(program), os.path.realpath(program))
            found.setdefault(key, Interpreter(path=program))
    return tuple(found.values())


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

    @property
    def other(self) -> bool:
        """Whether it is another environment than ours: that may have another overlay, or none."""
        return self.prefix != os.path.realpath(sys.prefix)


#: Lines that a Python answers with.
_ANSWERS = 4
_PROBE = (
    "import sys; m = sys.modules.get('overlay.launch.startup'); "
    "p = sys.modules.get('overlay.runtime.process'); "
    "print('overlay-probe', int(p is not None and p.here().enabled), sys.executable, sys.prefix, "
    "m.__file__ if m else '', sep='\\n')"
)


def armed_environment() -> dict[str, str]:
    """Return the environment of this process, armed, without any other setting and with no patch selected."""
    environ = {name: text for name, text in os.environ.items() if not name.startswith("OVERLAY")}
    return {**environ, "OVERLAY": "1", "OVERLAY_PATCHES": "none"}


def ask(interpreter: Interpreter, environ: Mapping[str, str]) -> Reply:
    """Start a Python as a command would, under its environment, and return what became of it.

    Raises `OSError` if it cannot be started, or not within a minute.
    """
    words = (*interpreter.behind, *interpreter.by, interpreter.path, *interpreter.options)
    with (
        TemporaryFile() as output,
        TemporaryFile() as errors,
    ):  # of a pipe, a process in the background holds one end
        try:
            done = subprocess.run(
                [*words, "-c", _PROBE], env={**environ}, timeout=60, check=False,
                stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"{interpreter.path} did not start within 60 s") from error
        text, heard = (_read(file) for file in (output, errors))
    found = text.rpartition("overlay-probe\n")[2].split("\n")
    said = "\n".join(line for line in heard.splitlines() if line.startswith("overlay: "))
    if len(found) < _ANSWERS or "overlay-probe\n" not in text:
        if not said:
            status = f"ended with status {done.returncode}"
            raise ChildProcessError(f"{interpreter.path} is no Python, or {status} as it started")
        # It belongs to the environment that it lies in.
        beside = os.path.dirname(os.path.dirname(os.path.abspath(interpreter.path)))
        found = ["0", interpreter.path, beside, ""]
    enabled, python, prefix, started, *_ = found
    return Reply(
        python=python, started=started, enabled=enabled == "1", said=said, prefix=os.path.realpath(prefix)
    )


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


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
        return (
            f"{answer.python} is a different Python, without overlay: install overlay there as well, or "
            f"have the job start {sys.executable}, say by putting its folder first on the PATH"
        )
    if interpreter.behind or interpreter.by:
        way_out = "leave out env"
        if not interpreter.behind:
            way_out = f"see what {interpreter.by[0]} reads at its start"
        return f"{shown} does not get the variables OVERLAY...: {way_out}"
    return why_unarmed() or f"{shown} was not enabled, and does not say why"


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
    with suppress(OverlayError):
        projects = engine.installed()
    own = [_startup_file(), _variable(), _settings(engine)]
    own.append(_pin(engine) if own[-1].answer == YES else _check("pin", NONE, "not compared"))
    checks = (*own, *_pythons(), _upstreams(engine, projects))
    todo = dict.fromkeys(check.todo for check in checks if check.todo)
    armed = all(check.answer != NO for check in checks)
    plan = ("overlay plan # what is decided, patch by patch",) * armed
    python = sys.executable
    return Checkup(
        armed=armed, checks=checks, package=PACKAGE, python=python, projects=projects, todo=(*todo, *plan)
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
        Pin(wanted, [engine.known()[name] for name in engine.chosen().ids])
    except OverlayError as error:
        todo = "give OVERLAY_PIN the lock that belongs here, or write it: "
        return _check("pin", NO, str(error), f"{todo}`OVERLAY_PIN= overlay lock --update`")
    return _check("pin", YES, wanted)


def _pythons() -> list[Check]:
    """Ask the Pythons that `python` and `python3` start: they need not be the one that runs this."""
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
