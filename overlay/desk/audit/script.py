"""The commands of a shell script, as far as they are certain. The script is read and never run.

Assignments, arrays, `$X`, `${X:-default}` and files beside the script are followed. What a branch adds to an
array is there perhaps. Whatever else can change a variable makes it unknown, and `$X` stays as it is written.
"""

from __future__ import annotations

import os
import re
from overlay.errors import SettingsError
from overlay.model.record import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    #: Returns the path and the text of the file that is named in one at a path.
    Find = Callable[[str, str], tuple[str, str] | None]
    #: A word of a command, and whether it stands there in any case.
    Word = tuple[str, bool]

_OPERATOR = re.compile(r"\d*(?:&>>?|>>|>&|<<<|<<-?|<&|<>|>\||[<>])(?!\()|;;&?|;&|&&|\|\||\|&|[;|&()\n]")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\[[^]]*\])?(\+?)=(.*)$", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?:(:?[-=])(.*))?\})$", re.DOTALL)
#: All words of an array, also as scripts write it that may not use one without any.
_SPREAD = re.compile(r'"?\$\{(\w+)\[[@*]\](?:\+"?\$\{\1\[[@*]\]\}"?)?\}"?')
#: Words that the script was given itself: none.
_GIVEN = re.compile(r'"?\$(?:[@*]|\{[@*](?::\d+)?\})"?')
#: Builtins that change the variables they name.
_SETTERS = (
    "declare",
    "export",
    "getopts",
    "let",
    "local",
    "mapfile",
    "read",
    "readarray",
    "readonly",
    "typeset",
    "unset",
)
_KEYWORDS = (
    "!", "[[", "case", "do", "done", "elif", "else", "esac", "fi", "function", "if", "then", "time", "until", "while",
    "{", "}",
)  # fmt: skip
_DEEPEST = 8
#: In the place of a space that splits no word: one in quotes, and one in what is not known.
_QUOTED, _UNKNOWN = "\1", "\2"


def commands(text: str, path: str, find: Find) -> tuple[list[list[Word]], list[str]]:
    """Return the commands of a script, each by its words, and the files that it reads and are not there.

    Args:
        text: The script.
        path: Where it lies.
        find: Returns the path and the text of a file that another one names, if that is there.

    Raises:
        SettingsError: A quotation or a bracket is not closed.

    """
    loose: set[str] = set()
    for _ in range(2):  # what a loop or a function assigns is known after the first reading
        script = _Script(path, find, loose)
        try:
            script.read(text.replace("\r\n", "\n"))
        except (IndexError, RecursionError):
            raise SettingsError("a quotation or a bracket of the script is not closed") from None
    return script.commands, script.missing


def _end(text: str, at: int, *, quoted: bool = False) -> int:
    """Return where a quotation, an expansion or a bracket ends that begins at a place."""
    opened = text[at : at + 2] if text[at : at + 2] in ("$(", "${") else text[at]
    if opened in ("$", "\\"):
        return at + len(opened) + (opened == "\\")
    closing = {"(": ")", "{": "}"}.get(opened[-1], opened[-1])
    special = "" if opened == "'" else "\\$`" if opened == '"' else '\\"$`' if quoted else "\\'\"$`"
    at += len(opened)
    while text[at] != closing:
        if closing == ")" and text[at] == "#" and text[at - 1] in " \t\n(":
            at = _line_end(text, at)
        elif text[at] in special or (closing == ")" and text[at] == "("):
            at = _end(text, at, quoted=opened == '"' or (quoted and closing == "}"))
        else:
            at += 1
    return at + 1


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _tokens(text: str) -> Iterator[tuple[bool, str]]:
    """Yield the words of a script, as they are written, and its operators, which come with `True`."""
    at = 0
    ends: list[str] = []  # of the documents that begin in the next line
    while at < len(text):
        operator = _OPERATOR.match(text, at)
        if text[at] in " \t" or text.startswith("\\\n", at):
            at += 1 + (text[at] == "\\")
        elif text[at] == "#":
            at = _line_end(text, at)
        elif operator is None or text.startswith("((", at):
            start = at
            if text.startswith("((", at):
                at = _end(text, at)
            while at < len(text) and text[at] not in " \t\n;&|()<>":
                at = _end(text, at) if text[at] in "\\'\"$`" else at + 1
                if text[at : at + 1] == "(" and (text[at - 1] == "="):
                    at = _end(text, at)
            if at == start:  # `<(command)`
                at = _end(text, at + 1)
            if ends and ends[-1] == "":
                ends[-1] = text[start:at].strip("'\"")
            yield False, text[start:at]
        else:
            at = operator.end()
            if operator[0].startswith("<<") and operator[0] != "<<<":
                ends.append("")
            if operator[0] == "\n":
                for word in ends:
                    closed = re.compile(rf"^\t*{re.escape(word)}$", re.MULTILINE).search(text, at)
                    at = closed.end() if closed else len(text)
                ends = []
            yield True, operator[0]
    yield True, "\n"


class _Script:
    """What is known of a script at one place of it."""

    def __init__(self, path: str, find: Find, loose: set[str]) -> None:
        self.commands: list[list[Word]] = []
        self.missing: list[str] = []
        self._path = path
        self._find = find
        #: What is assigned at times that cannot be told.
        self._loose = loose
        self._known: dict[str, str | tuple[Word, ...] | None] = {}
        #: Whether something that is not read may have set any variable.
        self._foreign = False
        #: What is open, by the words that open it; the body of a function by `function`.
        self._within: list[str] = []
        self._chained = False
        self._depth = 0

    def read(self, text: str) -> None:
        """Follow a script, or a file that it reads."""
        tokens = _tokens(text)
        words: list[str] = []
        before = ""
        for operator, token in tokens:
            if operator and ("<" in token or ">" in token):
                next(tokens, None)
            elif operator and token == "(":
                # After a name, those of a function.
                before = "function" if len(words) == 1 else before
                words = [] if before == "function" else words
                self._within += [] if before == "function" else ["("]
            elif operator:
                self._chained = before in ("&&", "||") or "|" in (before, token)
                if words and self._statement(words):
                    return
                if token == ")" and before != "function":
                    self._leave()
                if before != "function" and (words or token != "\n"):
                    before = token
                words = []
                if token.startswith(";;"):
                    self._pass_pattern(tokens)
            elif words or token not in _KEYWORDS:
                words.append(token)
            elif token in ("case", "function"):
                next(tokens, None)
                if token == "case":
                    self._within.append(token)
                    self._pass_pattern(tokens)
                before = token
            elif token == "[[":
                while next(tokens, (False, "]]")) != (False, "]]"):
                    pass
            elif token in ("if", "do", "{"):
                self._within.append("function" if before == "function" else token)
                before = token
            elif token in ("fi", "done", "}", "esac"):
                self._leave()

    def _pass_pattern(self, tokens: Iterator[tuple[bool, str]]) -> None:
        """Pass over the pattern of a `case`, or its end."""
        for token in tokens:
            if token == (False, "esac"):
                self._leave()
            if token in ((False, "esac"), (True, ")")):
                return

    def _leave(self) -> None:
        if self._within:
            self._within.pop()

    def _statement(self, words: list[str]) -> bool:
        """Follow one, and return whether the script ends there."""
        if all(map(_ASSIGNED.match, words)):
            for word in words:
                self._assign(word)
        elif words[0] == "exit":
            return not self._within and not self._chained
        else:
            self._command(words)
        return False

    def _command(self, words: list[str]) -> None:
        name = words[0]
        if name in ("source", "."):
            self._source(words[1:])
        elif name == "eval":
            self._foreign = True
            self._forget([*self._known])
        elif name == "set" and "--" in words:
            self._loose.add("@")
        elif name.startswith("(("):
            self._forget(re.findall(r"[A-Za-z_]\w*", name))
        elif name == "for" or (name == "printf" and words[1:2] == ["-v"]):
            self._forget(words[1:3])
        elif name in _SETTERS:
            for word in words[1:]:
                if _ASSIGNED.match(word):
                    self._assign(word)
                elif name not in ("export", "readonly"):
                    self._forget([word])
        else:
            if name.startswith("-"):
                self._foreign = True  # a part of a command, and not a script
            while len(words) > 1 and _ASSIGNED.match(words[0]):
                words = words[1:]
            self.commands.append([one for word in words for one in self._expanded(word)])

    def _source(self, words: list[str]) -> None:
        name = "".join(word for one in words[:1] for word, _ in self._expanded(one))
        found = self._find(name, self._path) if self._depth < _DEEPEST else None
        if found is None:
            self.missing.append(name)
            self._foreign = True
            self._forget([*self._known])
            return
        self._depth += 1
        before, self._path = self._path, found[0]
        self.read(found[1])
        self._path = before
        self._depth -= 1

    def _forget(self, names: list[str]) -> None:
        self._loose.update(names)

    def _assign(self, word: str) -> None:
        name, index, more, text = _ASSIGNED.match(word).groups()  # type: ignore[union-attr]
        value: str | tuple[Word, ...] | None = None
        if text.startswith("(") and not index:
            inner = [one for operator, one in _tokens(text[1:-1]) if not operator]
            value = tuple(one for part in inner for one in self._expanded(part))
        elif not index:
            value = self._text(text).replace(_QUOTED, " ")
        sure = not self._within and not self._chained
        perhaps = not sure and isinstance(value, tuple) and not {"do", "function"} & {*self._within}
        if more or perhaps:
            old = self._value(name, () if isinstance(value, tuple) else "")
            value = old + value if type(old) is type(value) is not type(None) else None  # type: ignore[operator]
        if perhaps and value is not None:
            kept = len(old) if more else 0
            value = old[:kept] + tuple((one, False) for one, _ in value[kept:])  # type: ignore[assignment]
        elif value is None or not (sure or value == self._known.get(name)):
            self._loose.add(name)
        self._known[name] = value

    def _value(self, name: str, unset: Any = None) -> Any:
        """Return what a variable stands for, `None` if that cannot be told, and `unset` if nothing sets it."""
        if name in self._loose or "function" in self._within:
            return None
        return self._known.get(name, None if self._foreign else unset)

    def _expanded(self, word: str) -> list[Word]:
        """Return the words that the shell makes of one."""
        spread = _SPREAD.fullmatch(word)
        if spread:
            # One that the script never makes is empty: the environment has no arrays.
            known = self._value(spread[1], ())
            if isinstance(known, tuple):
                return list(known)
        if _GIVEN.fullmatch(word) and "@" not in self._loose and "function" not in self._within:
            return []
        text = self._text(word)
        words = text.split() if text.strip() or not re.search("['\"]", word) else [text]
        return [(one.replace(_QUOTED, " ").replace(_UNKNOWN, " "), True) for one in words]

    def _text(self, word: str, *, quoted: bool = False) -> str:
        """Return what a word stands for. What is not known stays as it is written."""
        found = ""
        for part in _parts(word, quoted=quoted):
            if len(part) > 1 and part[0] in "$`":
                said = self._variable(part, quoted=quoted)
                if said is None:
                    found += re.sub(r"\s", _UNKNOWN, part)
                else:
                    found += re.sub(r"\s", _QUOTED, said) if quoted else said
            elif part[0] == '"' and not quoted:
                found += self._text(part[1:-1], quoted=True)
            elif part[0] == "\\":
                kept = quoted and part[1:] not in ("$", "`", '"', "\\", "\n")
                found += part if kept else part[1:].strip("\n")
            else:
                inner = part[1:-1] if part[0] == "'" and not quoted else part
                found += re.sub(r"\s", _QUOTED, inner)
        return found

    def _variable(self, part: str, *, quoted: bool) -> str | None:
        """Return the value of `$X`, `${X}` or `${X:-default}`; of anything else nothing is known."""
        variable = _VARIABLE.match(part)
        if variable is None:
            return None
        name, inner, sign, default = variable.groups()
        value = self._value(name or inner, os.environ.get(name or inner, ()))
        if value == () or (value == "" and sign and sign[0] == ":"):
            return self._text(default, quoted=quoted) if sign else None
        return value if isinstance(value, str) and not (sign and re.search("[$`]", value)) else None


def _parts(word: str, *, quoted: bool = False) -> list[str]:
    """Return a word in its parts: quotations, expansions, and what stands between them."""
    found, at, plain = [], 0, 0
    while at < len(word):
        if word[at] in ("\\$`" if quoted else "\\'\"$`"):
            end = _end(word, at)
            if word[at] == "$" and (name := re.match(r"\$(?:[A-Za-z_]\w*|[0-9@*#?$!-])", word[at:])):
                end = at + name.end()
            found += [word[plain:at], word[at:end]]
            at = plain = end
        else:
            at += 1
    return [part for part in [*found, word[plain:]] if part]
