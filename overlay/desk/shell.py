"""Which Pythons does a shell script write out? Its text is searched, and neither followed nor run."""

from __future__ import annotations

import os
import re
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
#: Another script, which it may start or source; behind a variable, it may lie beside this one.
_SCRIPT = re.compile(
    rf"{_BEGIN}(?:(?:ba|da|k|z)?sh|source|\.)(?:[ \t]+-\w+)*[ \t]+({_WORD})"
    rf"|(?<![\w./~+@-])({_WORD}\.(?:bash|sh|slurm))(?![\w./-])"
)
#: A Python, a launcher, or what activates an environment. Of a folder that is a variable, nothing is known.
_NAMED = re.compile(
    rf"{_BEGIN}((?:[\w.~+@-]*/)*)(python[\d.]*|(?<=/)activate|{'|'.join(LAUNCHERS)})(?![\w./-])"
)
#: The folders before a variable, such as the PATH that there was: what comes after it is found later.
_PATH = re.compile(r"\bPATH=([^\s;&|$`]+)")
#: What chooses an environment by a name, or by the folder: conda, which need not be on the PATH, and others.
_BETWEEN = r"[ \t]+(?:-[^\s;&|]*[ \t]+(?:[^-\s;&|][^\s;&|]*[ \t]+)?){0,8}?"
_ENVIRONMENT = re.compile(
    rf"{_BEGIN}(?:[\w.~+@-]*/)*(?:conda|mamba|micromamba){_BETWEEN}(?:activate|run)(?![\w.-])"
    rf"|{_BEGIN}(?:source|\.)[ \t]+(?:[\w.~+@${{}}-]*/)*activate[ \t]+[\w~/](?:[\w.~+/-]*\w)?(?![\w>&=])"
    rf"|{_BEGIN}((?:[\w.~+@-]*/)*(?:hatch|pdm|pipenv|pixi|poetry|uv)){_BETWEEN}run(?![\w.-])"
    rf"|{_BEGIN}(asdf|pyenv)[ \t]+(?:activate|exec|local|shell)(?![\w.-])"
)
#: What starts a Python and checks it there.
_CHECKED = re.compile(r"(?<![\w-])overlay[ \t]+run\b")
#: What a script may source, and is not read: what activates an environment has been understood, and of the
#: start-up files of a shell, most is for other shells.
_NOT_READ = ("activate", ".bash_profile", ".bashrc", ".profile", "bash.bashrc", "bashrc", "profile")
#: The most characters of a script, and scripts.
_MOST_TEXT, _MOST_SCRIPTS = 1 << 20, 50


class Written(Record):
    """What a script writes out."""

    #: Programs of Python, beside `python` and `python3` as the shell finds them.
    programs: tuple[str, ...]
    #: What chooses an environment in a way that cannot be told, empty if nothing does.
    untold: str
    #: Whether the script starts its Python by `overlay run`, which checks it then and there.
    checked: bool
    #: Whether the script itself could not be read: it is a pipe, say, which the shell has to read.
    unread: bool


def written(words: Sequence[str], shell: Sequence[str], path: str | None) -> Written:
    """Search the script that a shell's command reads, and scripts that this names."""
    texts = [*_texts(words, shell, path)]
    text = re.sub("[\"']", "", "\n".join(texts))
    found: list[str] = []
    paths = [os.pathsep.join(map(os.path.expanduser, each.split(":"))) for each in _PATH.findall(text)]
    for each in paths:
        found += [which(name, path=each) or "" for name in ("python", "python3")]
    for folder, name in _NAMED.findall(text):
        if folder:
            found.append(os.path.expanduser(folder) + ("python" if name == "activate" else name))
        elif name not in ("python", "python3"):
            found += [which(name, path=each) or "" for each in (*paths, path)]
    tools = ((match[0], match[1] or match[2]) for match in _ENVIRONMENT.finditer(text))
    chosen = (what for what, tool in tools if not tool or which(os.path.expanduser(tool), path=path))
    programs = dict.fromkeys(os.path.abspath(one) for one in found if os.path.isfile(one))
    return Written(
        programs=tuple(programs),
        untold=next(chosen, ""),
        checked=bool(_CHECKED.search(text)),
        unread=not any(texts[:1]),
    )


def _texts(words: Sequence[str], shell: Sequence[str], path: str | None) -> Iterator[str]:
    """Yield the text that a shell is given or that of its script, and those of scripts which these name.

    Raises `OverlayError` where there is no current folder.
    """
    here, script = current_folder(), script_of(words, shell)
    text, files = "", list[str]()
    if script == "-c":
        text = "\n".join(words[1:])
    elif script != "-s":
        own = words[0] == shell[0] and os.path.exists(script)  # else the PATH is searched for it
        file = script if own else which(script, mode=os.R_OK, path=path)
        if file:
            files.append(os.path.abspath(file))
            text, here = _read(file), os.path.dirname(files[0])
    waiting = [(text, here)]
    for whole, folder in waiting:  # it grows
        text = _COMMENT.sub(r"\1", whole)
        yield text
        for names in _SCRIPT.findall(text):
            name = os.path.expanduser("".join(names))
            places = map(os.path.abspath, (name, os.path.join(folder, name.lstrip("./"))))
            there = next(filter(os.path.isfile, places), "")
            is_new = there not in (*files, "") and os.path.basename(there) not in _NOT_READ
            if is_new and len(files) < _MOST_SCRIPTS:
                files.append(there)
                waiting.append((_read(there), os.path.dirname(there)))


def _read(file: str) -> str:
    """Return the text of a script, empty if it cannot be read or can be read only once."""
    with suppress(OSError):
        if os.path.isfile(file):
            with open(file, errors="replace") as script:
                return script.read(_MOST_TEXT)
    return ""
