"""Which Pythons does a shell script write out? Its text is searched, and neither followed nor run."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from contextlib import suppress
from shutil import which

from overlay.launch.interpreter import LAUNCHERS

#: A line up to its comment, which is in no quotes.
_COMMENT = re.compile(r"""^((?:[^'"\n]|'[^'\n]*'|"[^"\n]*")*?)(?:^|(?<=\s))#.*$""", re.MULTILINE)
#: Another script, which it may start or source.
_SCRIPT = re.compile(r"[\w./~+-]+\.sh\b")
#: A Python, a launcher, or what activates an environment: of a folder that is a variable, nothing is known.
_NAMED = re.compile(
    rf"(?<![\w$}}./~+-])((?:[\w.~+-]*/)*)(python[\d.]*|activate|{'|'.join(LAUNCHERS)})(?![\w./-])"
)
#: What comes before the PATH that there was: what comes after it is found last.
_PATH = re.compile(r"\bPATH=((?:(?!\$\{?PATH)[^\s;&|])+)")
#: What chooses an environment by its name, or by the folder.
_ENVIRONMENT = re.compile(
    r"\b(?:(conda|mamba|micromamba)\b[^\n;&|]*\b(?:activate|run)"
    r"|(hatch|pdm|pipenv|pixi|poetry|uv)\b[^\n;&|]*\brun)\b"
)
#: The most characters of a script, and scripts.
_MOST_TEXT, _MOST_SCRIPTS = 1 << 20, 50


def pythons_of(words: Sequence[str], shell: Sequence[str], path: str | None) -> tuple[list[str], str]:
    """Return the programs of Python that a shell's command writes out, beside `python` and `python3`.

    With them comes what chooses an environment in a way that cannot be told, empty if nothing does.
    """
    text = _COMMENT.sub(r"\1", _text(words, shell, path))
    found: dict[str, None] = {}
    for folder, name in _NAMED.findall(text):
        if name == "activate":
            # The Python of an environment is beside the file that activates it.
            program = os.path.join(os.path.expanduser(folder), "python") if folder else ""
        else:
            program = os.path.expanduser(folder) + name if folder else which(name, path=path) or ""
        if os.path.isfile(program) and (folder or name not in ("python", "python3")):
            found[os.path.abspath(program)] = None
    for value in _PATH.findall(text):
        for folder in re.findall(r"[^:\"'${}]+", value):
            programs = (os.path.join(os.path.expanduser(folder), name) for name in ("python", "python3"))
            found.update(dict.fromkeys(program for program in programs if os.path.isfile(program)))
    for match in _ENVIRONMENT.finditer(text):
        sets_up = match[1] is not None and re.search(r"conda\.sh|\bhook\b", text) is not None
        if sets_up or which(match[1] or match[2], path=path):
            return [*found], match[0]
    return [*found], ""


def _text(words: Sequence[str], shell: Sequence[str], path: str | None) -> str:
    """Return the text that a shell is given, that of its script, and that of scripts which these name."""
    is_shell = words[0] == shell[0]
    given = words[1:] if is_shell else ()
    file = next(filter(os.path.isfile, given), None) if is_shell else which(words[0], path=path)
    texts = ["\n".join(given)]
    with suppress(OSError):  # there may be no standard input
        if file is None and stat.S_ISREG(os.fstat(0).st_mode):
            texts.append(os.pread(0, _MOST_TEXT, os.lseek(0, 0, os.SEEK_CUR)).decode(errors="replace"))
    files = [os.path.abspath(one) for one in (file,) if one]
    for one in files:  # it grows
        with suppress(OSError), open(one, errors="replace") as script:
            texts.append(script.read(_MOST_TEXT))
        for name in _SCRIPT.findall(_COMMENT.sub(r"\1", texts[-1])):
            near = os.path.join(os.path.dirname(one), name.lstrip("./"))
            there = next(filter(os.path.isfile, (os.path.expanduser(name), near)), None)
            if there and os.path.abspath(there) not in files and len(files) < _MOST_SCRIPTS:
                files.append(os.path.abspath(there))
    return "\n".join(texts)
