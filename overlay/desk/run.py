"""`overlay run`: starts a command in which every Python process is armed.

What can be wrong is looked for before anything starts: settings, selection, packs and pin, and whether the
Python that the command runs in is armed at all. What a script starts cannot be known, and it is not read: the
Pythons on its PATH are asked, and the log says which.
"""

from __future__ import annotations

import argparse
import errno
import os
import re
import shlex
import signal
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from shutil import which
from typing import Any

from overlay.desk.output import EXIT_LOUD, EXIT_USAGE, add_selection, say
from overlay.errors import OverlayError, SelectionError
from overlay.launch.doctor import Reply, ask, refusal
from overlay.launch.interpreter import (
    HOSTS,
    LAUNCHERS,
    OTHER_NAMES,
    Interpreter,
    behind_starters,
    interpreter_of,
    is_python,
    missing,
    of_shell,
    run_by_option,
    shell_of,
)
from overlay.model import settings
from overlay.records import lock as lockfile
from overlay.runtime.engine import Engine
from overlay.source.registry import load_patches

#: The module that the script of a launcher imports, as installers write it.
_IMPORTS = re.compile(r"^from ([\w.]+) import", re.MULTILINE)
#: The exit codes of a shell for a command that cannot be started.
EXIT_NO_COMMAND, EXIT_NOT_FOUND = 126, 127
#: The options of `overlay run` that take a value.
_WITH_VALUE = ("--patches", "--pin")
_WAY_OUT = (
    "What to do: move `overlay run` behind it, right before the Python or the script that it starts; or set"
)
_TWICE = "What to do: leave this one out, and give its options to the `overlay run` that is behind it"
_IN_SCRIPT = (
    "If it starts another one: put `overlay run` into the script, right before that one, and start the "
    "script without it; or set"
)
_ON_HOSTS = (
    "What to do: DeepSpeed hands few variables on to other machines, and reads ~/.deepspeed_env only for "
    "those. Start it without `overlay run`, and set in that file (without quotes) and in the environment:"
)
_EPILOG = (
    "All words after COMMAND are passed to it; you may put -- before it. Exit codes: that of the "
    "command; 1 its Python would not be patched; 2 a setting, the selection, a pack or the pin is wrong (in "
    "both cases the command is not started); 126, 127 it cannot be started, as in a shell."
)


def add(commands: Any) -> None:
    """Add the command to the commands of a parser. It prints nothing of its own, so there is no `--json`."""
    text = "start a command with all its Python processes patched: overlay run torchrun ..."
    run = commands.add_parser(
        "run",
        help=text,
        description=text,
        epilog=_EPILOG,
        usage="overlay run [--patches SELECTION] [--strict] [--pin LOCK] COMMAND ...",
        allow_abbrev=False,
    )
    add_selection(run, "sets OVERLAY_PATCHES")
    what = "stop the job if a patch cannot be applied (sets OVERLAY_STRICT)"
    run.add_argument("--strict", action="store_true", help=what)
    what = "sets OVERLAY_PIN, and selects what was locked unless a selection is given"
    run.add_argument("--pin", metavar="LOCK", help=what)
    run.set_defaults(command=_run)


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the options of `overlay run`, and the command: from the first word on that is no option."""
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-", "--"):
        at += 2 if words[at] in _WITH_VALUE else 1
    command = at + 1 if words[at : at + 1] == ["--"] else at
    return list(words[:at]), list(words[command:])


def _run(_: Engine, arguments: argparse.Namespace) -> int:
    """Become the command, in an environment in which start-up files arm every Python."""
    if not any(arguments.words[:1]):  # an empty word is what is left of a variable that is not set
        raise SelectionError("there is no COMMAND: overlay run torchrun --nproc-per-node 8 train.py")
    environ = {name: text for name, text in os.environ.items() if name}  # a name can be empty, but not for us
    try:
        if environ.get("OVERLAY") and not settings.armed():
            there = "; a job has what its cluster sets" * (os.path.basename(arguments.words[0]) == "ray")
            say(f"overlay is off for the command, because OVERLAY={environ['OVERLAY']!r} is set{there}")
        else:
            environ = _environment(arguments)
            if status := _refused(arguments.words, environ):
                return status
    except OverlayError as error:
        raise SelectionError(f"the command was not started: {error}") from error
    _restore(environ)
    path = environ.get("PATH")
    program = which(arguments.words[0], path=path) or arguments.words[0]
    try:
        try:
            os.execvpe(program, arguments.words, environ)  # noqa: S606 -- the command that was asked for
        except OSError as error:
            shell = shell_of(arguments.words, path)
            if error.errno != errno.ENOEXEC or not shell:
                raise
            os.execve(shell[0], [shell[0], program, *arguments.words[1:]], environ)  # noqa: S606 -- as bash does
    except FileNotFoundError:
        gone = missing(arguments.words, path)
        what = f"its first line names {gone!r}, which is not there" if gone else "command not found"
        say(f"{arguments.words[0]}: {what}")
        return EXIT_NOT_FOUND
    except OSError as error:
        say(f"{arguments.words[0]} cannot be started: {error}")
        return EXIT_NO_COMMAND


def _restore(environ: dict[str, str]) -> None:
    """Undo what Python has changed at its own start, and the command would inherit."""
    for name in ("SIGPIPE", "SIGXFSZ"):  # which it ignores
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    with suppress(OSError), open("/proc/self/environ", "rb") as file:
        before = dict(each.partition("=")[::2] for each in os.fsdecode(file.read()).split("\0"))
        if "LC_CTYPE" in before:
            environ["LC_CTYPE"] = before["LC_CTYPE"]
        else:  # Python sets it where there is no locale, and where it is one that is not installed
            environ.pop("LC_CTYPE", None)


def _environment(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the environment of the command. Raises `SelectionError` and `LockError`."""
    environ = {**os.environ, "OVERLAY": "1"}
    if arguments.patches is not None:
        if not settings.asked(arguments.patches):
            raise SelectionError("--patches is empty: say 'all', 'none', or name patches")
        environ["OVERLAY_PATCHES"] = arguments.patches
    if arguments.strict:
        environ["OVERLAY_STRICT"] = "1"
    if arguments.pin is not None and not arguments.pin.strip():
        raise SelectionError("--pin is empty: name a lock, or leave it out")
    if arguments.pin is not None:
        environ["OVERLAY_PIN"] = arguments.pin
    paths = settings.absolute_paths(environ)  # workers run in other folders
    environ |= paths
    if "OVERLAY_PIN" in paths:
        lockfile.take_from(paths["OVERLAY_PIN"], environ, load_patches())  # a pack runs no code here
    elif not settings.pin(environ):
        environ.pop("OVERLAY_PIN", None)
    return environ


def _refused(words: list[str], environ: dict[str, str]) -> int:
    """Return the exit code if the command must not start, 0 if it may. Raises `OverlayError`."""
    unsure, known = "", interpreter_of(words, environ.get("PATH"))
    if known is None:
        _check(environ)  # the command may start any Python, this one among them
        unsure = _unsure(words, environ)
    else:
        status, reason, answer = _asked(known, environ)
        if answer is not None and not answer.other:
            _check(environ)
        if reason:
            why = ", because its Python would not be patched" if status != EXIT_NO_COMMAND else ""
            behind, _, path = behind_starters(words, environ.get("PATH"))
            word = behind[0]
            say(f"the command was not started{why}: {reason}{_of_first_line(word, answer, path)}")
            return status
    unsure = unsure or _of_ranks(words, environ)
    if not unsure:
        return 0
    if not _held(environ):
        say(f"the command is started anyway: {unsure}")
        return 0
    say(f"the command was not started, because the job is strict or pinned: {unsure}")
    return EXIT_LOUD


def _held(environ: dict[str, str]) -> bool:
    """Return whether the job is strict or pinned."""
    return bool(settings.strict(environ=environ) or settings.pin(environ))


def _asked(interpreter: Interpreter, environ: dict[str, str]) -> tuple[int, str, Reply | None]:
    """Return an exit code, why a Python would not be patched (empty if it would), and what it answered."""
    try:
        answer = ask(interpreter, environ)
    except OSError as error:
        # What is no Python, or not there, runs no job; a script may start the other name.
        known = interpreter.by and isinstance(error, ChildProcessError)
        reason = "" if known else f"{interpreter.path} cannot be asked whether it would be: {error}"
        return EXIT_NO_COMMAND, reason, None
    return EXIT_USAGE if answer.said else EXIT_LOUD, refusal(interpreter, answer), answer


def _of_first_line(word: str, answer: Reply | None, path: str | None) -> str:
    """Return what else helps if the first line of a program names another Python, whatever the PATH has."""
    if answer is None or not answer.other or is_python(word):
        return ""
    text = ""
    with suppress(OSError), open(which(word, path=path) or word, encoding="utf-8", errors="replace") as file:
        text = file.read(4096)
    on_path = os.sep not in word or which(os.path.basename(word), path=path) == word
    if found := _IMPORTS.search(text):
        package = found[1].partition(".")[0]
        way_out = f"install {package} where overlay is, or start it by `python -m {found[1]}`"
    else:
        way_out = f"install {word} where overlay is" if on_path else f"start it by `python {word}`"
    way_out = f"take it off the PATH, {way_out}" if on_path else way_out
    return f". The first line of {word} names it: {way_out}"


def _or_unchecked(way_out: str, environ: dict[str, str]) -> str:
    """Return a way out, with the settings by which the job is started without any check."""
    return f"{way_out} {_settings_of(environ)} instead, if it hands them on, and nothing is checked"


def _settings_of(environ: dict[str, str]) -> str:
    names = ("OVERLAY", "OVERLAY_PACKS", "OVERLAY_PATCHES", "OVERLAY_PIN", "OVERLAY_STRICT")
    return " ".join(f"{name}={shlex.quote(environ[name])}" for name in names if environ.get(name))


def _of_ranks(words: Sequence[str], environ: dict[str, str]) -> str:
    """Return what may go wrong with the Python that the environment names to torchrun."""
    env = [word.partition("=") for word in behind_starters(words, environ.get("PATH"))[1]]
    program = {**environ, **{name: value for name, _, value in env}}.get("PYTHON_EXEC")
    _, reason, _ = _asked(Interpreter(path=program), environ) if program else (0, "", None)
    said = f"PYTHON_EXEC names a Python that would run without patches: {reason}, or unset PYTHON_EXEC"
    return said if reason else ""


def _unsure(command: Sequence[str], environ: dict[str, str]) -> str:
    """Return what may go wrong with a command that starts some Python, and does not say which."""
    path = environ.get("PATH")
    if shell := shell_of(command, path):
        return _of_script(command, shell, environ)
    behind = behind_starters(command, path)[0]
    program = (behind or command)[0]
    if any(os.path.basename(word) == "overlay" and after == "run" for word, after in pairwise(command)):
        return f"{program} may not hand on what `overlay run` sets. {_TWICE}"
    # Else what becomes of the command will say that it is not there.
    there = which(command[0], path=path) and not missing(command, path)
    launches = is_python(program) or os.path.basename(program) in (*LAUNCHERS, *OTHER_NAMES)
    options = {word.partition("=")[0] for word in behind}
    hosts = program.endswith("deepspeed") or (launches and not options.isdisjoint(HOSTS))
    hosts = hosts and "--no_python" not in options
    if is_python(program):  # whose module starts another one
        program = f"`{program} -m {run_by_option(behind)}`"
    if not there:
        return ""
    way_out = f"{_ON_HOSTS} {_settings_of(environ)}" if hosts else _or_unchecked(_WAY_OUT, environ)
    return f"overlay cannot tell which Python {program} starts. {way_out}"


def _of_script(words: Sequence[str], shell: Sequence[str], environ: dict[str, str]) -> str:
    """Return what may go wrong with a script of a shell by the Pythons on its PATH. It is not read."""
    command, env, path = behind_starters(words, environ.get("PATH"))
    launchers = [(which(word, path=path) or "", interpreter_of([word], path)) for word in LAUNCHERS]
    found = [(one.path, one) for one in of_shell(shell, named=command[0] != shell[0])]
    asked: dict[Interpreter, tuple[int, str, Reply | None]] = {}
    shown, silent = list[str](), list[str]()
    for word, known in [*found, *((word, one) for word, one in launchers if one)]:
        one = known.replace(behind=(*env, *known.behind))
        if one not in asked:
            asked[one] = _asked(one, environ)
        _, reason, answer = asked[one]
        if reason:
            what = f"{command[0]} may start any Python, and `{word}` would run without patches: {reason}"
            return f"{what}{_of_first_line(word, answer, path)}. {_or_unchecked(_IN_SCRIPT, environ)}"
        if answer or which(word, path=path):
            (shown if answer else silent).append(f"`{word}`")
    said = f"{', '.join(shown)} would be patched in this environment" if shown else "none was found"
    said += f"; {', '.join(silent)} cannot be asked" if silent else ""
    # The job must not depend on whether this can be written.
    with suppress(Exception):
        say(
            f"of the Pythons that {command[0]} may start, {said}; no other was checked: a patched job logs "
            "`overlay: configuration: ...`"
        )
    return ""


def _check(environ: dict[str, str]) -> None:
    """Raise `OverlayError` if a process of this installation could not be enabled in an environment."""
    before = dict(os.environ)
    try:
        settings.log_level(environ)
        # Each process of the command says by itself what is odd about its settings.
        os.environ.update({**environ, "OVERLAY_LOG": "error"})
        engine = Engine()
        engine.enable()
        engine.disable()
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
