"""Plain text of at most 80 columns, and numbers of things in words.

Only what cannot be cut, the path of a file or the name of a site, may be longer.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH = 80
#: The least width of the last column of a table.
_LEAST = 24


def plural(phrase: str) -> str:
    """Return the plural of a phrase, of which the noun comes last, or before `of`, `in` or `that`."""
    for word in (" of ", " in ", " that "):
        noun, found, rest = phrase.partition(word)
        if found:
            return f"{plural(noun)}{found}{rest}"
    return f"{phrase}es" if phrase.endswith(("ch", "sh", "s", "x")) else f"{phrase}s"


def counted(count: int, word: str) -> str:
    """Return a number of things in words. `word`: one of them."""
    return f"{count} {word if count == 1 else plural(word)}"


def listed(names: Sequence[str], most: int, between: str = ", ", last: str = " ") -> str:
    """Return names in a row: the first `most`, and how many more there are."""
    more = f"{last}and {len(names) - most} more" if len(names) > most else ""
    return between.join(names[:most]) + more


def wrap(text: str, indent: str = "", *, first: str | None = None) -> str:
    """Return a text in lines of at most `WIDTH` columns: `first` begins the first, `indent` the others."""
    from textwrap import fill  # which imports `re`: not while a process is armed

    return fill(
        " ".join(text.split()),
        WIDTH,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return an aligned table whose last column is wrapped to what is left of the line."""
    from textwrap import wrap as split

    if not rows:
        return "(none)"
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head) - 1)]
    left = sum(widths) + 2 * len(widths)
    # If long names leave no room beside them, the last column goes below them.
    below = left > WIDTH - _LEAST
    left = 4 if below else left
    lines = []
    for row in (head, *rows):
        chunks = split(row[-1], WIDTH - left, break_on_hyphens=False) or [""]
        cells = [cell.ljust(0 if below else width) for cell, width in zip(row[:-1], widths, strict=True)]
        if below:
            chunks.insert(0, "")
        lines.append(("  ".join([*cells, chunks[0]])).rstrip())
        lines += [" " * left + chunk for chunk in chunks[1:]]
    return "\n".join(lines)
