"""The commands of a shell script, as far as they are certain. The script is read and never run.

It follows assignments, arrays, `$X`, `${X:-default}` and files beside the script. What a branch adds to an
array counts as unsure. Whatever else can change a variable makes it unknown: `$X` stays as it is written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import dropwhile
from pathlib import Path
from typing import Any

from overlay.errors import SettingsError

#: A word of a command, and whether it is sure to stand there.
Word = tuple[str, bool]


_OPERATOR = re.compile(r"\d*(?:&>>?|>>|>&|<<<|<<-?|<&|<>|>\||[<>])(?!\()|;;&?|;&|&&|\|\||\|&|[;|&()\n]")
#: What begins a document, and the word that ends it.
_DOCUMENT = re.compile(r"(?<!<)<<-?[ \t]*((?:\\.|'[^'\n]*'|\"[^\"\n]*\"|[^\s;&|()<>'\"\\])+)")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\[[^]]*\])?(\+?)=(.*)$", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?:(:?[-=])(.*))?\})$", re.DOTALL)
#: What assigns in an arithmetic expression.
_ASSIGNING = re.compile(r"(?<![=!<>])=(?!=)|<<=|>>=|\+\+|--")
#: All words of an array, also in the form that `set -u` asks for if the array may be empty.
_SPREAD = re.compile(r'"?\$\{(\w+)\[[@*]\](?:\+"?\$\{\1\[[@*]\]\}"?)?\}"?')
#: The arguments of the script itself: there are none.
_GIVEN = re.compile(r'"?\$(?:[@*]|\{[@*](?::\d+)?\})"?')
#: Builtins that set the variables they name, and those that do so by an assignment alone.
_SETTERS = ("for", "getopts", "let", "mapfile", "read", "readarray", "select", "set", "unset")
_MARKERS = ("declare", "export", "local", "readonly", "typeset")
#: Other builtins, which may change anything.
_BUILTINS = ("alias", "coproc", "enable", "unalias")
#: Flags of `declare` that leave a value as it is written.
_PLAIN_FLAGS = re.compile(r"[-+][agprx]+")
#: Words before a command that start it as it is.
_AS_IT_IS = ("command", "builtin", "time")
#: Among the names of unknown variables, this one stands for all.
_ALL = "*"
_OPENERS = ("if", "do", "{")
_CLOSERS = ("fi", "done", "}", "esac")
_KEYWORDS = (*_OPENERS, *_CLOSERS, "!", "[[", "case", "elif", "else", "function", "then", "until", "while")
#: Stand for a space that splits no word: one in quotes, and one in a text that is not known.
_QUOTED, _UNKNOWN = "\1", "\2"
#: The most characters of a file: a longer one is not for a job.
_MOST_TEXT = 4 << 20


def file_text(path: str, errors: str = "strict") -> str:
    """Return the text of a file with settings. Raises `SettingsError`."""
    try:
        with open(
            path, encoding="utf-8-sig", errors=errors
        ) as file:  # editors of Windows put a mark before the text
            text = file.read(_MOST_TEXT + 1)
    except (OSError, ValueError) as error:
        raise SettingsError(f"the settings in {path} cannot be read: {error}") from error
    if len(text) > _MOST_TEXT:
        raise SettingsError(f"{path} has more than {_MOST_TEXT} characters, too many for a job")
    return text


def commands(path: str) -> tuple[list[list[Word]], list[str]]:
    """Return the commands of a script, as words, and the files that it reads and that are missing.

    Raises `SettingsError`.
    """
    loose: set[str] = set()
    for _ in range(2):  # the first reading finds what loops and functions assign
        script = _Script(loose)
        try:
            script.read(path, file_text(path))
        except (IndexError, RecursionError):
            raise SettingsError(f"a quotation or a bracket in {path} is not closed") from None
    return script.commands, script.missing


def _beside(path: str, name: str) -> Iterator[str]:
    """Yield the files that a script may mean by a name: beside it, or in a folder above it.

    Its folder is often a variable (that of the script, or of its checkout), or its path in an image.
    """
    if os.path.isabs(name) and os.path.isfile(name):
        yield name
    tail = re.sub(r"^(\$(\{\w+\}|\w+|\(.*\)))?/", "", name)
    above = list(Path(path).absolute().parents)
    # A name without a folder may be that of any file.
    tails = [tail] + [tail.split("/", cut)[-1] for cut in range(1, tail.count("/"))]
    for one in tails if "$" not in tail else ():
        for folder in above if "/" in one else above[:1]:
            if (folder / one).is_file():
                yield str(folder / one)


def _end(text: str, at: int, *, quoted: bool = False) -> int:
    """Return where the quotation, expansion, bracket or else character ends that begins at a place."""
    opened = text[at : at + 2] if text[at : at + 2] in ("$(", "${") else text[at]
    if text.startswith("$'", at) and not quoted:
        closed = re.compile(r"\$'(?:\\.|[^'\\])*'", re.DOTALL).match(text, at)
        return closed.end() if closed else len(text)
    if opened == "$":
        name = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]").match(text, at + 1)
        return name.end() if name else at + 1
    if opened not in ("$(", "${", '"', "`") and (quoted or opened not in "'("):
        return at + 1 + (opened == "\\")
    closing = {"(": ")", "{": "}"}.get(opened[-1], opened[-1])
    at += len(opened)
    ends: list[str] = []  # of the documents that begin in the next line
    while text[at] != closing:
        document = _DOCUMENT.match(text, at) if closing == ")" else None
        if document:
            ends.append(document[1])
            at = document.end()
        elif text[at] == "\n" and ends:
            after = _after_documents(text, at + 1, ends)
            at, ends = (after if after < len(text) else at), []  # else it was a shift in arithmetic
        elif closing == ")" and text[at] == "#" and text[at - 1] in " \t\n(":
            at = _line_end(text, at)
        elif opened == "'" or (text[at] == "(" and closing != ")"):
            at += 1
        else:
            at = _end(text, at, quoted=opened == '"' or (quoted and closing == "}"))
    return at + 1


def _after_documents(text: str, at: int, ends: list[str]) -> int:
    """Return where the last of the documents ends that begin at a place and end with these words."""
    for word in ends:
        bare = re.escape(re.sub(r"[\\'\"]", "", word))
        closed = re.compile(rf"^\t*{bare}$", re.MULTILINE).search(text, at)
        at = closed.end() if closed else len(text)
    return at


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _with_bare_name(word: str) -> str:
    """Return a word of a declaration with the quotation around its value alone: `"X=$Y"` is `X="$Y"`."""
    name = word[: word.find("=") + 1] or word
    still_open = [quote for quote in "\"'" if name.count(quote) % 2]
    return re.sub(r"[\\'\"]", "", name) + "".join(still_open[:1]) + word[len(name) :]


def _tokens(text: str) -> Iterator[tuple[bool, str]]:
    """Yield the words of a script as they are written, with `False`, and its operators, with `True`."""
    at = 0
    ends: list[str] = []  # of the documents that begin in the next line
    while at < len(text):
        start, operator = at, _OPERATOR.match(text, at)
        if text[at] in " \t" or text.startswith("\\\n", at):
            at += 1 + (text[at] == "\\")
        elif text[at] == "#":
            at = _line_end(text, at)
        elif operator is None or text.startswith("((", at):
            at = _end(text, at + (operator is None and text[at] in "<>"))
            while at < len(text) and (text[at] not in " \t\n;&|()<>" or text[at - 1 : at + 1] == "=("):
                at = _end(text, at)
            ends = [word or text[start:at] for word in ends]
            yield False, text[start:at]
        else:
            at = operator.end()
            if operator[0] in ("<<", "<<-"):
                ends.append("")
            if operator[0] == "\n":
                at, ends = _after_documents(text, at, ends), []
            yield True, operator[0]
    yield True, "\n"


def _pass(tokens: Iterator[tuple[bool, str]], *ends: tuple[bool, str]) -> tuple[bool, str] | None:
    """Skip tokens up to one of `ends`, and return that, `None` if none comes."""
    return next((one for one in tokens if one in ends), None)


class _Script:
    """What is known of a script at one place of it."""

    def __init__(self, loose: set[str]) -> None:
        self.commands: list[list[Word]] = []
        self.missing: list[str] = []
        #: The files that are being read, the innermost last.
        self._paths: list[str] = []
        #: Variables, and `name()` for functions, whose value at any one place is not known.
        self._loose = loose
        self._known: dict[str, str | tuple[Word, ...] | None] = {}
        #: Whether something that was not read may have set any variable.
        self._foreign = False
        #: What is open, by the words that open it; the body of a function by `function`.
        self._within: list[str] = []
        #: Whether the command runs only after another's success or failure, or in a shell of its own.
        self._chained = False
        self._ended = False
        self._returned = False
        #: The command so far, and what stands before it.
        self._words: list[str] = []
        self._before = ""

    def read(self, path: str, text: str) -> None:
        """Follow a script, or a file that it reads."""
        before, chained, within = self._before, self._chained, self._within
        # What stands in a file is no surer than the command that reads it.
        self._before, self._within = "", [*within, *(["if"] if chained else [])]
        self._paths.append(path)
        tokens = _tokens(text.replace("\r\n", "\n"))
        for is_operator, token in tokens:
            if self._ended or self._returned:
                break
            if is_operator and re.search("[<>]", token):
                next(tokens, None)
            elif is_operator:
                self._operate(token, tokens)
            elif self._words or token not in _KEYWORDS:
                self._words.append(token)
            else:
                self._open_or_close(token, tokens)
        self._before, self._chained, self._within = before, chained, within
        self._returned = False
        self._paths.pop()

    def _operate(self, operator: str, tokens: Iterator[tuple[bool, str]]) -> None:
        words, self._words = self._words, []
        before = self._before
        if operator == "(":
            # After a name, this bracket begins a function.
            self._before = "function" if len(words) == 1 else before
            self._loose.update(f"{word}()" for word in words[:1])
            self._within += [] if self._before == "function" else ["("]
            return
        self._chained = before in ("&&", "||") or operator == "&" or "|" in (before, operator)
        if before != "function" and (words or operator != "\n"):
            self._before = operator
        if words:
            self._statement(words)
        if operator == ")" and before != "function":
            del self._within[-1:]
        if operator.startswith(";;"):
            self._pass_pattern(tokens)

    def _open_or_close(self, word: str, tokens: Iterator[tuple[bool, str]]) -> None:
        if word == "[[":
            _pass(tokens, (False, "]]"))
        elif word == "case":
            self._within.append(word)
            self._pass_pattern(tokens)
        elif word in _OPENERS:
            self._within.append("function" if self._before == "function" else word)
            self._before = word
        elif word in _CLOSERS:
            del self._within[-1:]
        elif word == "function":
            self._loose.update(f"{one}()" for _, one in [next(tokens)])
            self._before = word

    def _pass_pattern(self, tokens: Iterator[tuple[bool, str]]) -> None:
        """Skip the pattern of a `case`, or its end."""
        if _pass(tokens, (False, "esac"), (True, ")")) == (False, "esac"):
            del self._within[-1:]

    def _statement(self, words: list[str]) -> None:
        # Leave out variables that are set for this command alone, and `command` and the like before it.
        as_it_is = (*_AS_IT_IS, "-p") if words[0] in _AS_IT_IS else _AS_IT_IS
        command = [*dropwhile(lambda word: word in as_it_is or _ASSIGNED.match(word), words)]
        if command and command[0].startswith("-") and words[0] in _AS_IT_IS:
            command = words
        name = re.sub(r"[\\'\"]", "", "".join(command[:1]))
        if not command:
            for word in filter(_ASSIGNED.match, words):
                self._assign(word)
        elif name in _MARKERS:
            self._declare(command[1:])
        elif name in ("printf", "wait"):
            self._set(name, re.findall(r" -[vp] ?(\S+)", " ".join(command))[:1])
        elif name in _SETTERS:
            self._set(name, command[1:])
        elif name in ("source", "."):
            for word in filter(_ASSIGNED.match, words[: len(words) - len(command)]):
                self._assign(word)
            self._source("".join(word for one in command[1:2] for word, _ in self._expanded(one)))
        elif not self._forgets(name, command):
            # A line that begins with a flag is a part of a command: this is no whole script.
            self._foreign = self._foreign or name.startswith("-")
            known = [one for word in command for one in self._expanded(word)]
            # A function that has the name of a program does not start it.
            self.commands.append([(f"{name}()", True), *known[1:]] if f"{name}()" in self._loose else known)
        self._leave(name, command)

    def _forgets(self, name: str, command: list[str]) -> bool:
        """Return whether something runs that can change variables in a way that is not followed."""
        if name.startswith("(("):
            self._loose.update(re.findall(r"[A-Za-z_]\w*", name))
        elif name == "eval":
            self._forget()
            return False  # it may start the job
        elif name in _BUILTINS or (name == "trap" and {"DEBUG", "ERR", "RETURN"} & {*command}):
            self._loose.add(_ALL)
        elif re.match(r"[A-Za-z_]\w*\[.*=", name):
            self._loose.add(name.partition("[")[0])
        else:
            return False
        return True

    def _leave(self, name: str, command: list[str]) -> None:
        """Note that the script, or a file that it reads, ends here, unless it does so in a branch only."""
        sure = not self._within and not self._chained
        if name == "exit" or (name == "exec" and len(command) > 1):
            self._ended = sure
        elif name == "return" and "function" not in self._within:
            self._returned = sure
            self._loose.update(() if sure else (_ALL,))

    def _declare(self, words: list[str]) -> None:
        """Follow `declare` and the like, which assign what has a value; some flags change the value."""
        words = [_with_bare_name(word) for word in words]
        plain = all(_PLAIN_FLAGS.fullmatch(word) for word in words if word[:1] in ("-", "+", "$", "`"))
        for word in words:
            # With `-a`, brackets in quotes make an array as well.
            if plain and _ASSIGNED.match(word) and not re.match("[^=]*=['\"]+\\(", word):
                self._assign(word)
            elif any(word[:1] == "-" and "n" in word for word in words):
                self._loose.add(_ALL)  # a name for another variable
            elif re.match("[^=]*[$`{]", word):
                self._forget()  # any name
            elif not plain or "=" in word:
                self._loose.add(re.split(r"[\[+=]", word)[0])

    def _set(self, name: str, words: list[str]) -> None:
        """Forget the variables that a builtin sets, or all if it does not write them out."""
        named = words[:1] if name in ("for", "select") else words
        if name == "set":
            given = [
                word for word in words if not re.fullmatch(r"[-+]\w+|pipefail|\w*(trace|exit|unset)", word)
            ]
            self._loose.update(["--"] if given else [])
        elif any("$" in word or "`" in word for word in named):
            self._forget()
        else:
            self._loose.update(re.findall(r"[A-Za-z_]\w*", " ".join(named)), ("REPLY", "MAPFILE", "OPTARG"))

    def _forget(self) -> None:
        """Note that something that was not read may have set any variable."""
        self._foreign = True
        self._loose.update(self._known)

    def _source(self, name: str) -> None:
        if os.path.basename(os.path.dirname(name)) == "bin" and os.path.basename(name) == "activate":
            return None  # of an environment: it sets nothing that a job is given
        found = next((file for file in _beside(self._paths[-1], name) if file not in self._paths), None)
        if found is not None:
            return self.read(found, file_text(found, "replace"))
        self.missing.append(name)
        self._forget()
        return None

    def _assign(self, word: str) -> None:
        name, index, more, text = _ASSIGNED.match(word).groups()  # type: ignore[union-attr]
        self._loose.update((_ALL,) if name == "IFS" else ())
        value: Any = None
        if text.startswith("(") and not index:
            inner = [one for operator, one in _tokens(text[1:-1]) if not operator]
            value = tuple(one for part in inner for one in self._expanded(part))
        elif not index:
            value = self._text(text).replace(_QUOTED, " ")
        sure = not self._within and not self._chained
        perhaps = not sure and isinstance(value, tuple) and not {"do", "function"} & {*self._within}
        unset = () if isinstance(value, tuple) else os.environ.get(name)
        old = self._value(name, unset) if more or perhaps else None
        if perhaps:
            value = tuple((one, False) for one, _ in value)
            old = old if more or not isinstance(old, tuple) else tuple((one, False) for one, _ in old)
        if value is not None and (more or perhaps):
            value = old + value if isinstance(old, type(value)) else None
        if value is None or not (sure or perhaps or value == self._known.get(name)):
            self._loose.add(name)
        self._loose.update([f"{name}="] if name in self._known else [])
        self._known[name] = value

    def _value(self, name: str, unset: Any) -> Any:
        """Return what a variable stands for, `None` if that cannot be told, `unset` if nothing sets it."""
        if name in self._loose or _ALL in self._loose:
            return None
        # A function may run at any time: what is assigned once, and above it, is known there.
        if "function" in self._within and (f"{name}=" in self._loose or name not in self._known):
            return None
        return self._known.get(name, None if self._foreign else unset)

    def _expanded(self, word: str) -> list[Word]:
        """Return the words that the shell makes of one."""
        spread = _SPREAD.fullmatch(word)
        # An array that the script never makes is empty: the environment has none.
        known = self._value(spread[1], ()) if spread else None
        if isinstance(known, tuple) and word[0] == '"':
            return list(known)
        if isinstance(known, tuple):
            whole = re.compile("[$`]").search  # not known
            return [(one, sure) for text, sure in known for one in ([text] if whole(text) else text.split())]
        if _GIVEN.fullmatch(word) and "function" not in self._within and "--" not in self._loose:
            return []  # there are none without a `set --`
        text = self._text(word)
        words = text.split() if text.strip() or not re.search("['\"]", word) else [text]
        return [(one.replace(_QUOTED, " ").replace(_UNKNOWN, " "), True) for one in words]

    def _text(self, word: str, *, quoted: bool = False) -> str:
        """Return what a word stands for. What is not known stays as it is written."""
        found, at = "", 0
        while at < len(word):
            end = _end(word, at, quoted=quoted)
            part, at = word[at:end], end
            if len(part) == 1:
                found += _QUOTED if quoted and part.isspace() else part
            elif part[0] in "$`":
                said = self._variable(part, quoted=quoted)
                space = _UNKNOWN if said is None else _QUOTED if quoted else r"\g<0>"
                found += re.sub(r"\s", space, part if said is None else said)
            elif part[0] == '"':
                found += self._text(part[1:-1], quoted=True)
            elif part[0] == "'":
                found += re.sub(r"\s", _QUOTED, part[1:-1])
            elif part[0] == "(" or (quoted and part[1] not in '$`"\\\n'):
                found += part
            else:
                found += re.sub(r"\s", _QUOTED, part[1:].strip("\n"))
        return found

    def _variable(self, part: str, *, quoted: bool) -> str | None:
        """Return the value of `$X`, `${X}` or `${X:-default}`; of anything else nothing is known."""
        variable = _VARIABLE.match(part)
        if variable is None:
            if part.startswith("$((") and _ASSIGNING.search(part):
                self._loose.update(re.findall(r"[A-Za-z_]\w*", part))
            return None
        name, inner, sign, default = variable.groups()
        value = self._value(name or inner, ())
        value = os.environ.get(name or inner, value) if value == () else value
        if value == () or (value == "" and sign and sign[0] == ":"):
            if sign and sign[-1] == "=":
                self._assign(f"{inner}={default}")
            return self._text(default, quoted=quoted) if sign else None
        return value if isinstance(value, str) and not (sign and re.search("[$`]", value)) else None
