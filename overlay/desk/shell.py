"""Which Pythons does a shell script write out? Its text is searched, and neither followed nor run."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from shutil import which

from overlay.launch.interpreter import LAUNCHERS, script_of
from overlay.model.record import Record
from overlay.model.settings import current_folder

#: A line up to its comment, which is in no quotes.
_COMMENT = re.compile(r"""^((?:[^'"\n]|'[^'\n]*'|"[^"\n]*")*?)(?:^|(?<=\s))#.*$""", re.MULTILINE)
#: What begins a word, and what one is that has no variable in it.
_BEGIN, _WORD = r"(?<![\w$})*?\].,/~+@-])", r"[\w./~+@-]+"
#: A variable with a value that stands in for it, and one that gets a value of another kind.
_DEFAULT = re.compile(r"\$\{(\w+):?[-=]([^{}$]*)\}")
_ASSIGNED = re.compile(r"""(?<![\w${])(\w+)=(?!["']?\$\{\1:?[-=])""")
#: Another script, which it may start or source; behind a variable, it may lie beside this one.
_SCRIPT = re.compile(
    rf"{_BEGIN}(?:(?:ba|da|k|z)?sh|source|\.)(?:[ \t]+-\w+)*[ \t]+({_WORD})"
    rf"|(?<![\w./~+@-])({_WORD}\.(?:bash|sh|slurm))(?![\w./-])"
)
#: A Python or a launcher. Of a folder that is a variable, nothing is known.
_NAMED = re.compile(rf"{_BEGIN}((?:[\w.~+@-]*/)*)(python[\d.]*|{'|'.join(LAUNCHERS)})(?![\w./-])")
#: What activates an environment: that which it lies in, or of conda another one, by its name.
_ACTIVATE = re.compile(
    rf"(?:{_BEGIN}((?:[\w.~+@-]*/)+activate)|{_BEGIN}(?:source|\.)[ \t]+(activate))(?![\w./-])"
    rf"(?:[ \t]+([\w./~+]{_WORD}|\w)(?![\w>&]))?"
)
#: The folders before a variable, such as the PATH that there was: what comes after it is found later.
_PATH = re.compile(r"\bPATH=([^\s;&|$`]+)")
#: What chooses an environment by a name, or by the folder: conda, which need not be on the PATH, and others.
_BETWEEN = r"[ \t]+(?:-[^\s;&|]*[ \t]+(?:[^-\s;&|][^\s;&|]*[ \t]+)?){0,8}?"
_ENVIRONMENT = re.compile(
    rf"{_BEGIN}(?:[\w.~+@-]*/)*(?:conda|mamba|micromamba){_BETWEEN}(?:activate|run)(?![\w.-])"
    rf"|{_BEGIN}((?:[\w.~+@-]*/)*(?:hatch|pdm|pipenv|pixi|poetry|uv)){_BETWEEN}run(?![\w.-])"
    rf"|{_BEGIN}(asdf|pyenv|module)[ \t]+(?:activate|exec|load|local|shell)(?![\w.-])"
)
#: The most characters of a script, and scripts.
_MOST_TEXT, _MOST_SCRIPTS = 1 << 20, 50


class Written(Record):
    """What a script writes out."""

    #: Programs of Python, beside `python` and `python3` as the shell finds them.
    programs: tuple[str, ...]
    #: What chooses an environment in a way that cannot be told, empty if nothing does.
    untold: str
    #: The same, by a program that is not on the PATH, so that it may be in a branch that does not run.
    perhaps: str
    #: Whether the script itself could not be read: it is a pipe, say, which the shell has to read.
    unread: bool


def written(words: Sequence[str], shell: Sequence[str], path: str | None) -> Written:
    """Search the script that a shell's command reads, and scripts that this names."""
    texts = [*_texts(words, shell, path)]
    text = re.sub("[\"']", "", "\n".join(texts))
    found: list[str] = []
    untold = perhaps = ""
    paths = [os.pathsep.join(map(os.path.expanduser, each.split(":"))) for each in _PATH.findall(text)]
    for each in paths:
        found += [which(name, path=each) or "" for name in ("python", "python3")]
    for folder, name in _NAMED.findall(text):
        if folder:
            found.append(os.path.expanduser(folder) + name)
        elif name not in ("python", "python3"):
            found += [which(name, path=each) or "" for each in (*paths, path)]
    for match in _ACTIVATE.finditer(text):
        file, name = os.path.expanduser(match[1] or match[2]), match[3] or ""
        if "/" not in file:  # the shell need not be able to run what it sources
            found_at = (which(file, mode=os.R_OK, path=each) for each in (*paths, path))
            file = next(filter(None, found_at), file)
        inside = os.path.dirname(file)
        above = os.path.dirname(inside)
        named = os.path.join(above, "envs")
        if name not in ("", "base") and (
            os.path.isdir(named) or not os.path.isfile(os.path.join(above, "pyvenv.cfg"))
        ):
            inside = os.path.join(named, name, "bin")
            untold = untold or match[0] * (os.path.isfile(file) and not os.path.isdir(inside))
        found.append(os.path.join(inside, "python") if inside else "")
    for match in _ENVIRONMENT.finditer(text):
        tool = match[1] or match[2]
        if tool is None or which(os.path.expanduser(tool), path=path):
            untold = untold or match[0]
        else:
            perhaps = perhaps or match[0]
    programs = dict.fromkeys(os.path.abspath(one) for one in found if os.path.isfile(one))
    return Written(programs=tuple(programs), untold=untold, perhaps=perhaps, unread=not any(texts[:1]))


def _texts(words: Sequence[str], shell: Sequence[str], path: str | None) -> Iterator[str]:
    """Yield the text that a shell is given or that of its script, and those of scripts which these name.

    Raises `OverlayError` where there is no current folder.
    """
    here, script = current_folder(), script_of(words, shell)[0]
    text, files = "", list[str]()
    if script == "-c":
        text = "\n".join(words[1:])
    elif script == "-s":
        text = _standard_input()
    else:
        own = words[0] == shell[0] and os.path.exists(script)  # else the PATH is searched for it
        file = script if own else which(script, mode=os.R_OK, path=path)
        if file:
            files.append(os.path.abspath(file))
            text, here = _read(file), os.path.dirname(files[0])
    waiting = [(text, here)]
    for whole, folder in waiting:  # it grows
        text = _with_values(_COMMENT.sub(r"\1", whole))
        yield text
        for names in _SCRIPT.findall(text):
            name = os.path.expanduser("".join(names))
            places = map(os.path.abspath, (name, os.path.join(folder, name.lstrip("./"))))
            there = next(filter(os.path.isfile, places), "")
            # What activates an environment has been understood, and conda's says `conda activate` itself.
            is_new = there not in (*files, "") and os.path.basename(there) != "activate"
            if is_new and len(files) < _MOST_SCRIPTS:
                files.append(there)
                waiting.append((_read(there), os.path.dirname(there)))


def _with_values(text: str) -> str:
    """Return a script's text with the values of variables that have a default and get no other one."""
    known = {**os.environ, **dict.fromkeys(_ASSIGNED.findall(text), "$")}
    return _DEFAULT.sub(lambda found: known.get(found[1]) or found[2], text)


def _read(file: str) -> str:
    """Return the text of a script, empty if it cannot be read or can be read only once."""
    with suppress(OSError):
        if os.path.isfile(file):
            with open(file, errors="replace") as script:
                return script.read(_MOST_TEXT)
    return ""


def _standard_input() -> str:
    """Return what a shell will read there, if it can be read twice."""
    with suppress(OSError):  # there may be none
        if stat.S_ISREG(os.fstat(0).st_mode):
            return os.pread(0, _MOST_TEXT, os.lseek(0, 0, os.SEEK_CUR)).decode(errors="replace")
    return ""
