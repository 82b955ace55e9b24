"""Which Python does a command start? By its words, a PATH, and the first line of a script."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice, pairwise, takewhile
from shutil import which

from overlay.model.record import Record

#: Programs that start the command in their arguments, in the same environment and on the same machine.
STARTERS = (
    "chrt", "env", "flock", "gdb", "ionice", "nice", "nohup", "nsys", "numactl", "perf", "prlimit", "setsid",
    "stdbuf", "strace", "taskset", "time", "timeout", "unshare", "xargs",
)  # fmt: skip
#: Words before that command which are also names of programs.
_NO_PROGRAMS = ("false", "file", "idle", "kill", "node", "profile", "record", "stat", "test", "true")
#: Programs of Python that start a job's processes, by default in their own Python.
LAUNCHERS = ("accelerate", "deepspeed", "ray", "torchrun")
#: The option of a launcher that starts any program, and how short it may be.
_NO_PYTHON, _SHORTEST = "--no-python", len("--no-")
#: The second line of a script that is started by the Python beside it.
_BESIDE = re.compile(r"""'''exec' "\$\(dirname -- "\$\(realpath -- "\$0"\)"\)"/'([^'/]+)' """)
#: How torchrun ends as a module.
_TORCHRUN = (".distributed.launch", ".distributed.run")
#: Programs that start a command or a kernel in another environment or on another machine; of some, commands.
_ELSEWHERE = (
    "anyscale", "asdf", "conda", "dotenv", "dstack", "hatch", "honcho", "jupyter", "jupyterlab", "mamba",
    "modal", "mpiexec", "mpirun", "nbconvert", "notebook", "nox", "papermill", "pdm", "pipenv", "pipx",
    "poetry", "pyenv", "sky", "srun", "torchx", "tox", "uv",
)  # fmt: skip
_COMMANDS_ELSEWHERE = {"hf": ("jobs",), "ray": ("exec", "submit", "up"), "serve": ("deploy",)}
#: Options by which DeepSpeed starts ranks on other machines, and hands on hardly a variable.
HOSTS = ("-H", "--hostfile", "--deepspeed_hostfile", "--force_multi")
#: What some launchers are called too.
OTHER_NAMES = {"accelerate-launch": "accelerate", "deepspeed.pt": "deepspeed", "ds": "deepspeed"}
#: How a shell that has no `"$@"` names its arguments, without the first one.
_ARGUMENTS = {"csh": "$argv[2-]:q", "fish": "$argv[2..-1]", "tcsh": "$argv[2-]:q"}
_SHELLS = ("ash", "bash", "dash", "ksh", "sh", "zsh", *_ARGUMENTS)
_LONG = ("init-file", "login", "noprofile", "norc", "posix", "rcfile")
_LONG_WITH_VALUE = ("command", "emulate", "features", "init-command", "init-file", "profile", "rcfile")
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
    words, env, path = behind_starters(words, path)
    command, more, path = behind_starters(() if starts_elsewhere(words) else _runner(words, path), path)
    env += more
    program = which(command[0], path=path) if command and is_python(command[0]) else None
    if program is None:
        return None
    # `env` may set another PATH: it is to find a bare name itself.
    bare = env and not os.path.dirname(command[0])
    # Those that can keep it from start-up files or packages.
    options = tuple(f"-{letter}" for letter, _ in _options(command[1:]) if letter in "EIPSs")
    return Interpreter(path=command[0] if bare else program, options=options, behind=env)


def starts_elsewhere(words: Sequence[str]) -> bool:
    """Return whether a launcher starts its command in another Python or on other machines."""
    name = os.path.basename(words[0]) if words else ""
    name = OTHER_NAMES.get(name, name)
    if is_python(name):
        module = run_by_option(words)
        top = module.partition(".")[0]
        name = "torchrun" if module.endswith(_TORCHRUN) else top if top in LAUNCHERS else module
        words = words[words.index(module) :] if module in words else words
    if name in _COMMANDS_ELSEWHERE:
        return words[1:2] != [] and words[1] in _COMMANDS_ELSEWHERE[name]
    if name not in LAUNCHERS:
        # A PEX goes on in a Python that it chooses.
        return name in _ELSEWHERE or name.startswith("jupyter-") or name.endswith(".pex")
    own = [
        *takewhile(lambda word: not word.endswith(".py") and word not in ("-m", "--module"), words[1:]),
        "",
    ]
    shortened = [word.replace("_", "-") for word in own if len(word) >= _SHORTEST]
    if "--force_multi" in own or any(map(_NO_PYTHON.startswith, shortened)):
        return True
    options = [(*word.partition("=")[::2], after) for word, after in pairwise(own)]
    # DeepSpeed takes no notice of a file that is not there. The second one is its default.
    files = [value or after for option, value, after in options if option in HOSTS]
    files += ["/job/hostfile"] if name == "deepspeed" and os.path.isfile("/job/hostfile") else []
    return "--no_ssh" not in own and any(map(os.path.isfile, files))


def shell_of(words: Sequence[str], path: str | None = None) -> Sequence[str]:
    """Return the command of the shell that a command runs in, by a PATH, nothing if that is none."""
    words, _, path = behind_starters(words, path)
    command = () if starts_elsewhere(words) else _runner(words, path)
    return command if command and os.path.basename(command[0]) in _SHELLS else ()


def _runner(words: Sequence[str], path: str | None) -> Sequence[str]:
    """Return a command of Python or a shell as it is, and what the first line of any other one names."""
    program = which(words[0], path=path) if words else None
    if program is None:
        return ()
    folder = os.path.dirname(program)
    if os.path.basename(folder) == "shims" and not is_python(program):
        # As of pyenv, which chooses a Python, and starts the program beside that.
        return [python] if which(python := os.path.join(folder, "python")) else []
    return words if is_python(program) or os.path.basename(program) in _SHELLS else _first_line(program)


def missing(words: Sequence[str], path: str | None = None) -> str:
    """Return the program that the first line of a script names, if it is not there."""
    behind, _, path = behind_starters(words, path)
    command = _runner(behind, path)
    return command[0] if command and not which(command[0], path=path) else ""


def behind_starters(
    words: Sequence[str], path: str | None
) -> tuple[Sequence[str], tuple[str, ...], str | None]:
    """Return the command behind all programs that start another, nothing if it cannot be found.

    With it come the words of `env` among them, which may take variables away, and the PATH that it has.
    """
    env: tuple[str, ...] = ()
    while words and os.path.basename(words[0]) in STARTERS and which(words[0], path=path):
        sets, at = os.path.basename(words[0]) == "env", 1
        while at < len(words) and (words[at] in _NO_PROGRAMS or not which(words[at], path=path)):
            path = words[at].removeprefix("PATH=") if sets and words[at].startswith("PATH=") else path
            at += 1
        env += tuple(words[:at]) if sets else ()
        words = words[at:]
    return words, env, path


def is_python(program: str) -> bool:
    """Return whether a program has a name of Python's, such as `python3.12`."""
    name = os.path.basename(program)
    return name.startswith("python") and not name.removeprefix("python").strip("0123456789.t")


def run_by_option(words: Sequence[str]) -> str:
    """Return the module that a command of Python runs by `-m`, empty if it runs none."""
    return next((value for letter, value in _options(words[1:]) if letter == "m"), "")


def _options(words: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the letters of an interpreter's options, each with its value if it takes one."""
    rest = iter(words)
    for word in takewhile(lambda word: word[:1] == "-" and word not in ("-", "--"), rest):
        if word[:2] == "--":
            value = next(rest, "") if word == "--check-hash-based-pycs" else ""
            yield word, value
            continue
        for place, letter in enumerate(word[1:], 2):
            if letter not in "cmWX":
                yield letter, ""
                continue
            # What follows one of these letters is its value, and no other option.
            yield letter, word[place:] or next(rest, "")
            if letter in "cm":
                return
            break


def of_shell(shell: Sequence[str], *, named: bool) -> list[Interpreter]:
    """Return what a script of a shell may start as `python` and `python3`.

    The shell itself is to find them, with its own options: files that it reads at its start may set the PATH,
    and there may be a function or an alias of that name. `named`: whether it is the first line of a script
    that names it.
    """
    arguments = _ARGUMENTS.get(os.path.basename(shell[0]), '"$@"')
    command, rest, commands = [shell[0]], iter(shell[1:]), named
    word = next(rest, "")
    while word[:1] in ("-", "+") and word not in ("-", "--"):
        # bash has long options with one dash.
        long = word[:2] == "--" or word[1:] in _LONG
        letters = "" if long else word
        fish = arguments == _ARGUMENTS["fish"]
        values = letters[-1:] in [*"CDdfop"] if fish else letters.lower().count("o")
        values += word.lstrip("-") in _LONG_WITH_VALUE
        # Without what says where its commands come from.
        given_here = "c" in letters or word.startswith("--command")
        option = word if long else letters.replace("c", "").replace("s", "")
        option = "" if long and given_here else option
        commands = commands or given_here
        given = [*islice(rest, values)]
        command += [option, *given] if len(option) > 1 else []
        word = next(rest, "")
    if not (commands or word) and os.isatty(0):
        command.append("-i")
    return [Interpreter(path=name, by=(*command, "-c", f"{name} {arguments}")) for name in _NAMES]


def _first_line(program: str) -> list[str]:
    """Return the command that runs a script, which its first line names; none if it is no script."""
    try:
        with open(program, "rb") as file:
            first, second = (os.fsdecode(file.readline(1024)) for _ in range(2))
    except OSError:
        return []
    if not first.startswith("#!"):
        # A shell that is told to start it runs it itself, if it is a text.
        return [] if "\0" in first + second else [which("bash") or "/bin/sh"]
    words = re.findall(r"[^ \t\n]+", first[2:])  # another end of line belongs to the name
    if words and second.startswith("'''exec' "):
        # Installers write it so if a path is too long for a first line, has a space in it, or may change.
        if beside := _BESIDE.match(second):
            return [os.path.join(os.path.dirname(os.path.realpath(program)), beside[1])]
        with suppress(ValueError):
            words = shlex.split(second.removeprefix("'''exec' "), comments=True)[:1]
    if words and os.path.basename(words[0]) == "env":
        words = words[1:]
        # The kernel makes one word of what follows. Any other -S is Python's own.
        if split := re.match(r"-([a-zA-Z]*?)S\s*(.*)", " ".join(words)):
            with suppress(ValueError):
                options = [f"-{split[1]}"] if split[1] else []
                words = [*options, *shlex.split(os.path.expandvars(split[2]))]
        first = "".join(words[:1])
        words = (
            ["env", *words] if "=" in first or first.startswith("-") else words
        )  # which decide what it gets
    return words


def on_path(path: str | None = None) -> tuple[Interpreter, ...]:
    """Return what `python` and `python3` are on a PATH, once if they are the same."""
    found: dict[tuple[str, str], Interpreter] = {}
    for program in (which(name, path=path) for name in _NAMES):
        if program is not None:
            key = (os.path.dirname(program), os.path.realpath(program))
            found.setdefault(key, Interpreter(path=program))
    return tuple(found.values())
