"""Which Python does a command run in, and is a process of that Python enabled? It is asked.

That can be told of an interpreter, of a script whose first line names one (`torchrun`, `ray`, what pip
installs), and behind a program that only starts another (`env`, `nohup`). Of a shell script it cannot.
"""

from __future__ import annotations

import os
import subprocess
import sys

from overlay.model.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Programs that start the command in their arguments, in the same environment and on the same machine.
_STARTERS = (
    "chrt", "env", "gdb", "ionice", "nice", "nohup", "numactl", "perf", "setsid", "stdbuf", "strace",
    "taskset", "time", "timeout",
)  # fmt: skip
#: Letters of an interpreter's options that decide what it does at its start; others that take no value.
_ISOLATING, _OTHER_LETTERS = "EIPSs", "bBdiOquvx"
#: Bytes of a script that are looked at.
_HEAD = 1024


class Interpreter(Record):
    """A Python that a command runs in."""

    #: How it is started.
    path: str
    #: Options of its own that matter here, such as `-S`.
    options: tuple[str, ...] = ()
    #: The words of `env` that start it: they decide which variables it gets.
    behind: tuple[str, ...] = ()


def interpreter_of(words: Sequence[str], path: str | None = None) -> Interpreter | None:
    """Return the Python that a command runs in, `None` if that cannot be told.

    Args:
        words: The command and its arguments.
        path: Where programs are looked for, as in PATH (default: that of this process).

    """
    from shutil import which

    program = which(words[0], path=path) if words else None
    if program is None:
        return None
    if is_python(program):
        return Interpreter(path=program, options=_options(words[1:]))
    named = _shebang(program)
    if named:
        return interpreter_of(named, path)
    if os.path.basename(words[0]) in _STARTERS:
        for start in range(1, len(words)):
            found = interpreter_of(words[start:], path)
            if found is not None:
                env = tuple(words[:start]) if os.path.basename(words[0]) == "env" else ()
                return Interpreter(path=found.path, options=found.options, behind=env + found.behind)
    return None


def is_python(program: str) -> bool:
    """Return whether a program is called as Python is."""
    name = os.path.basename(program)
    return name.startswith("python") and not name.removeprefix("python").strip("0123456789.t")


def _options(words: Sequence[str]) -> tuple[str, ...]:
    """Return those options of an interpreter by which it may leave out start-up files or packages."""
    found = []
    rest = iter(words)
    for word in rest:
        if word in ("-W", "-X"):
            next(rest, None)
            continue
        if word[:1] != "-" or word[1:2] in ("", "-"):
            break
        letters = word[1:]
        known = next((at for at, one in enumerate(letters) if one not in _ISOLATING + _OTHER_LETTERS), None)
        found += [f"-{one}" for one in letters[:known] if one in _ISOLATING]
        if known is not None and letters[known] not in "WX":
            break  # -c, -m: what follows is not its own
    return tuple(found)


def _shebang(program: str) -> list[str]:
    """Return the command that a script names in its first line, none if it names no Python."""
    try:
        with open(program, "rb") as file:
            lines = os.fsdecode(file.read(_HEAD)).split("\n")
    except OSError:
        return []
    if not lines[0].startswith("#!"):
        return []
    words = lines[0][2:].split()
    if len(lines) > 1 and lines[1].startswith("'''exec' "):
        # How installers write a path that is too long, or has a space in it, for a first line.
        from shlex import split

        try:
            words = split(lines[1].removeprefix("'''exec' "))[:1]
        except ValueError:
            return []
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if word != "-S"]
    return words if words and is_python(words[0]) else []


class Answer(Record):
    """What a Python said of itself."""

    #: Where its overlay would start from, empty if no start-up file ran.
    started: str
    #: Whether it is enabled.
    enabled: bool
    #: What it printed meanwhile.
    said: str
    #: The environment that it belongs to, as its `sys.prefix` has it.
    prefix: str

    @property
    def other(self) -> bool:
        """Whether it is another environment than ours, in which another overlay may be or none."""
        return self.prefix != os.path.realpath(sys.prefix)


_PROBE = (
    "import sys; m = sys.modules.get('overlay.launch.startup'); "
    "p = sys.modules.get('overlay.runtime.process'); "
    "print('overlay-probe', int(p is not None and p.here().enabled), sys.prefix, "
    "m.__file__ if m else '', sep='\\n')"
)
_LINES = 3


def armed_environment() -> dict[str, str]:
    """Return the environment of this process, as one that is armed, without any other setting or patch."""
    environ = {name: text for name, text in os.environ.items() if not name.startswith("OVERLAY")}
    return {**environ, "OVERLAY": "1", "OVERLAY_PATCHES": "none"}


def ask(interpreter: Interpreter, environ: Mapping[str, str], patience: float = 60.0) -> Answer:
    """Start a Python as a command would, under its environment, and return what became of it.

    Raises `OSError` if it cannot be started, `TimeoutError` among them: it gets `patience` seconds.
    """
    try:
        done = subprocess.run(
            [*interpreter.behind, interpreter.path, *interpreter.options, "-c", _PROBE], env={**environ},
            capture_output=True, text=True, errors="replace", timeout=patience, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"{interpreter.path} did not start within {patience:.0f} s") from error
    _, mark, found = done.stdout.rpartition("overlay-probe\n")
    # Of one that said nothing, by where it lies.
    beside = os.path.dirname(os.path.dirname(os.path.abspath(interpreter.path)))
    enabled, prefix, started = (found.split("\n") if mark else ["", "", "", ""])[:_LINES]
    return Answer(
        started=started,
        enabled=enabled == "1",
        said="\n".join(line for line in done.stderr.splitlines() if line.startswith("overlay: ")),
        prefix=os.path.realpath(prefix or beside),
    )


def on_path(path: str | None = None) -> tuple[Interpreter, ...]:
    """Return what `python` and `python3` are on a PATH, once if they are the same."""
    from shutil import which

    found: dict[tuple[str, str], Interpreter] = {}
    for name in ("python", "python3"):
        program = which(name, path=path)
        if program is not None:
            key = (os.path.dirname(program), os.path.realpath(program))
            found.setdefault(key, Interpreter(path=program))
    return tuple(found.values())
