"""Which Pythons does the script of a shell start? Its text is read as far as it is certain, and never run."""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from shutil import which

from overlay.desk.audit.script import Word, all_commands, beside
from overlay.errors import SettingsError
from overlay.launch.interpreter import (
    LAUNCHERS,
    NAMES,
    STARTERS,
    Interpreter,
    behind_starters,
    interpreter_of,
    is_python,
    on_path,
    shell_of,
    starts_elsewhere,
)

#: Programs that start a command in an environment of their own; the first ones also activate one.
_CONDA = ("conda", "mamba", "micromamba")
_RUNNERS = (*_CONDA, "hatch", "pdm", "pipenv", "pixi", "poetry", "uv")
#: In a script, what starts the command in its arguments, if perhaps on other machines.
_STARTERS = (*STARTERS, "mpiexec", "mpirun", "srun")
#: Files that set a PATH up, by whatever they run.
_START_UP = (".bash_profile", ".bashrc", ".profile", ".zshrc", "profile")
#: What stands for a program's path.
_FOUND = re.compile(r"\$\((?:command -v|type -p|which) ([\w./-]+)\)")
#: A Python, or a launcher, that is written out anywhere but in a comment.
_NAMED = re.compile(
    rf"(?<![\w./$}}-])((?:/[\w.+-]+)+/(?:python[\d.]*|{'|'.join(LAUNCHERS)}|activate)|python\d\.\d+)(?![\w./-])"
)
#: The most characters of a script, and of words in a message.
_MOST_TEXT, _MOST_SHOWN = 1 << 20, 80


def pythons_of(
    words: Sequence[str], shell: Sequence[str], path: str | None
) -> tuple[dict[str, Interpreter], str]:
    """Return the Pythons that a shell's command starts by another name than `python` or `python3`.

    Those are launchers, environments that it activates, a `PATH` that it sets, and what it writes out. With
    them comes the first command of which that cannot be told, empty if there is none.
    """
    reader = _Reader(path)
    reader.read(words, shell)
    return reader.found, reader.untold


class _Reader:
    """What is known at one place of a script."""

    def __init__(self, path: str | None) -> None:
        self.found: dict[str, Interpreter] = {}
        self.untold = ""
        self._path = path
        #: Where the script may be, and whether it may be anywhere else.
        self._folders = [os.getcwd()]
        self._lost = False
        #: Whether conda may be there, although it is not on the PATH.
        self._conda = False
        self._shell = self._file = ""
        self._read: set[tuple[str, str]] = set()

    def read(self, words: Sequence[str], shell: Sequence[str]) -> None:
        """Follow a command of a shell, or a script that names its shell."""
        file, text = self._script(words) if words[0] == shell[0] else (which(words[0], path=self._path), "")
        if file and not text and os.path.isfile(file):  # what is no file can be read only once
            with suppress(OSError), open(file, errors="replace") as script:
                text = script.read(_MOST_TEXT)
        self._shell, before = shell[0], self._file
        self._conda = self._conda or any(re.match("-[a-z]*l|--login", word) for word in shell[1:])
        if file and (file, text) not in self._read:
            self._read.add((file, text))
            self._file = file
            self._follow(text, file)
            self._file = before

    def _script(self, words: Sequence[str]) -> tuple[str | None, str]:
        """Return the file that a shell reads, or the text that it is given."""
        rest, letters = iter(words[1:]), ""
        word = next(rest, "")
        while word[:1] in ("-", "+") and word not in ("-", "--"):
            letters += word if word[:1] == "-" != word[1:2] else ""
            if word in ("--rcfile", "--init-file") or (word[1:2] != "-" and word[-1] in "oO"):
                next(rest, None)
            word = next(rest, "")
        word = next(rest, "") if word in ("-", "--") else word
        if "c" in letters:
            return "-c", word
        if word and "s" not in letters:
            near = next(beside(self._file, word), None) if "$" in word and self._file else None
            return word if os.path.isfile(word) else near or which(word, path=self._path), ""
        with suppress(OSError):  # there may be no standard input
            if not self._file and stat.S_ISREG(os.fstat(0).st_mode):
                return "-", os.pread(0, _MOST_TEXT, os.lseek(0, 0, os.SEEK_CUR)).decode(errors="replace")
        return None, ""

    def _follow(self, text: str, file: str) -> None:
        text = _FOUND.sub(r"\1", text)
        # What a variable stands for is not always known: so each that is written out is asked.
        for name in _NAMED.findall(re.sub(r"(?m)(?:^|\s)#.*$", "", text)):
            self._look_at(["source", name] if name.endswith("/activate") else [name])
        try:
            lines = all_commands(file, text)
        except SettingsError as error:
            self.untold = self.untold or str(error)
            return
        for line in lines:
            for words in _beginnings(line):
                self._look_at(words)

    def _look_at(self, words: list[str]) -> None:
        if words[0] in ("cd", "pushd"):
            self._enter(words[-1])
        elif words[0] == "PATH":
            whole = re.sub(r"\$\{PATH:?\+:\$\{?PATH\}?\}", f":{self._path or ''}", words[-1])
            before, parts = on_path(self._path), whole.split(":")
            known = [part for part in parts if not re.search("[${}`]", part)]
            self._path = ":".join([*known, self._path or ""] if len(known) < len(parts) else known)
            self.found |= {one.path: one for one in on_path(self._path) if one not in before}
        elif words[0] == "PATH=":
            self._start(["env", *words[1:]])
        elif words[0] in ("source", "."):
            self._activate(words)
        elif words[0] == "eval":
            text = " ".join(words[1:])
            self._set_up(re.split("[\\s\"'`()]", text))
            self._follow(text, "eval")
        else:
            self._start(words)

    def _start(self, words: list[str]) -> None:
        """Look at a command that is no part of the shell."""
        if words[0] == "exec":
            words = words[1:]
        command, env = behind_starters(words, self._path, _STARTERS)
        name = os.path.basename(command[0]) if command else ""
        there = name != "" and which(command[0], path=self._path) is not None
        if name in _RUNNERS:
            activates = name in _CONDA and "activate" in command
            there = there or (name in _CONDA and self._conda)
            self._cannot_tell(words if there and (activates or "run" in command) else ())
        elif name in LAUNCHERS or is_python(name):
            told = [command[0]] if there else self._found_at(command[0])
            if starts_elsewhere(command, bool) or (not told and "$" in command[0]):
                self._cannot_tell(words)
            for program in told if env or "/" in command[0] or name not in NAMES else ():
                one = interpreter_of([*env, program, *command[1:]], self._path)
                self.found |= {" ".join([*env, program]): one} if one is not None else {}
        elif there and starts_elsewhere(command):
            self._cannot_tell(words)
        elif shell := shell_of(command, self._path):
            self.read(command, shell)
        elif name.endswith("sh") and "$" in command[0]:
            for script in beside(self._file, command[0]) if self._file else ():
                self.read([script], shell_of([script], self._path) or [script])

    def _activate(self, words: list[str]) -> None:
        """Look at what the script sources: the Python of an environment is beside the file that activates."""
        name = os.path.expanduser(words[1]) if words[1:] else ""
        if os.path.basename(name) in _START_UP:
            for python in NAMES if os.path.isfile(name) else ():
                by = (self._shell, "-c", f'. {shlex.quote(name)}; {python} "$@"')
                self.found[f"{python} after {name}"] = Interpreter(path=python, by=by)
        if os.path.basename(name) != "activate":
            self._set_up([name])
            return
        files = self._found_at(name)
        for file in files if words[2:] == [] else ():
            program = os.path.join(os.path.dirname(file), "python")
            self.found[program] = Interpreter(path=program)
        elsewhere = "$" in name or "`" in name or (self._lost and not os.path.isabs(name))
        # A file that is not there fails the script, or is asked for first.
        self._cannot_tell(words if name == "activate" or words[2:] or (not files and elsewhere) else ())

    def _set_up(self, names: Sequence[str]) -> None:
        """Note what sets conda up, unless it is not there."""
        theirs = [name for name in names if "conda" in name or "mamba" in name]
        there = (
            name for name in theirs if "$" in name or os.path.isfile(name) or which(name, path=self._path)
        )
        self._conda = self._conda or any(there)

    def _found_at(self, name: str) -> list[str]:
        """Return the files that a path may stand for."""
        paths = dict.fromkeys(os.path.join(folder, name) for folder in self._folders)
        return [path for path in paths if "/" in name and os.path.isfile(path)]

    def _enter(self, name: str) -> None:
        known = "$" not in name and "`" not in name and name != "-"
        self._lost = self._lost or not known
        name = os.path.expanduser(name)
        self._folders += [os.path.join(folder, name) for folder in self._folders[:9] if known]

    def _cannot_tell(self, words: Sequence[str]) -> None:
        shown = " ".join(words)
        self.untold = self.untold or shown[:_MOST_SHOWN] + "..." * (len(shown) > _MOST_SHOWN)


def _beginnings(line: list[Word]) -> Iterator[list[str]]:
    """Yield the commands that a line may be: its first words may not be there."""
    words = [word for word, _ in line]
    for at, (word, sure) in enumerate(line):
        if word:
            yield words[at:]
        if sure:
            return
