"""A unified diff of two sources, in which the words that changed are marked."""

from __future__ import annotations

import difflib
import re

from overlay.base.record import TYPE_CHECKING, Record

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: Below this share of equal names two lines have nothing to do with one another: all of both would be marked.
_ALIKE = 0.5
#: Lines among which one that is alike is looked for.
_AHEAD = 8
_WORD = re.compile(r"\w+|\s+|.")
_NAME = re.compile(r"\w+")


class Line(Record):
    """One line of a diff."""

    #: `add`, `del`, `same`, or `hunk` for what heads a block of lines.
    kind: str
    #: Its text, cut where a changed word begins or ends, each piece with whether it changed.
    parts: tuple[tuple[str, bool], ...]

    @property
    def text(self) -> str:
        """Return the line without marks."""
        return "".join(part for part, _ in self.parts)

    @property
    def sign(self) -> str:
        """Return what stands before it, so that no meaning hangs on a colour."""
        return {"add": "+", "del": "-", "same": " ", "hunk": ""}[self.kind]


def unified(before: str, after: str, context: int = 3) -> tuple[Line, ...]:
    """Return the changes from one source to the other, with some lines around each."""
    old, new = before.splitlines(), after.splitlines()
    found = []
    for group in difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(context):
        _, first, _, other, _ = group[0]
        found.append(_whole("hunk", f"line {first + 1} as released, {other + 1} with overlay"))
        for tag, start, end, new_start, new_end in group:
            if tag == "equal":
                found += [_whole("same", line) for line in old[start:end]]
            else:
                found += _changed(old[start:end], new[new_start:new_end])
    return tuple(found)


def around(after: str, original: str) -> tuple[Line, ...]:
    """Return the lines of a wrapper, all of them new, with its calls of the original marked.

    Args:
        after: The source of what calls.
        original: The name by which it has what it calls; empty marks nothing.

    """
    name = re.compile(rf"\b{re.escape(original)}\b") if original else None
    return tuple(Line(kind="add", parts=_around(line, name)) for line in after.splitlines())


def _around(line: str, name: re.Pattern[str] | None) -> tuple[tuple[str, bool], ...]:
    found, at = [], 0
    for match in name.finditer(line) if name else ():
        found += [(line[at : match.start()], False), (match[0], True)]
        at = match.end()
    return tuple(part for part in [*found, (line[at:], False)] if part[0])


def _whole(kind: str, line: str) -> Line:
    return Line(kind=kind, parts=((line, False),) if line else ())


def _changed(old: Sequence[str], new: Sequence[str]) -> list[Line]:
    """Return removed and added lines. Similar ones are paired in order and compared word by word."""
    gone, come = [_whole("del", line) for line in old], [_whole("add", line) for line in new]
    begin = 0
    for place, line in enumerate(old):
        for other in range(begin, min(begin + _AHEAD, len(new))):
            if not _alike(line, new[other]):
                continue
            words, others = _WORD.findall(line), _WORD.findall(new[other])
            codes = difflib.SequenceMatcher(None, words, others, autojunk=False).get_opcodes()
            parts = _parts(words, ((start, end, tag) for tag, start, end, _, _ in codes))
            gone[place] = Line(kind="del", parts=tuple(parts))
            parts = _parts(others, ((start, end, tag) for tag, _, _, start, end in codes))
            come[other] = Line(kind="add", parts=tuple(parts))
            begin = other + 1
            break
    return [*gone, *come]


def _alike(line: str, other: str) -> bool:
    """Return whether two lines share most of their names, whatever their brackets and indentation."""
    names = _NAME.findall(line), _NAME.findall(other)
    matcher = difflib.SequenceMatcher(None, *names, autojunk=False)
    return bool(names[0]) and matcher.quick_ratio() >= _ALIKE and matcher.ratio() >= _ALIKE


def _parts(words: Sequence[str], codes: Iterator[tuple[int, int, str]]) -> Iterator[tuple[str, bool]]:
    for start, end, tag in codes:
        if start < end:
            text = "".join(words[start:end])
            yield text, tag != "equal" and not text.isspace()
