"""What `overlay prove` prints for people."""

from __future__ import annotations

import textwrap

from overlay.desk.prove.prove import FAILS, HARMLESS, PROVEN, UNSHOWN
from overlay.desk.prove.runner import NOT_RUN
from overlay.desk.prove.writing import seeds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from overlay.desk.prove.processes import Outcome
    from overlay.desk.prove.prove import Options, Row
    from overlay.desk.prove.writing import Try

WIDTH = 110
#: What an outcome is called in the table, as in that of `scripts/demo`.
_WORDS = {"holds": "right", "wrong": "wrong"}
_HEAD = ("patch", "on", "alone", "patched", "verdict")


def table(rows: Sequence[Row], options: Options) -> str:
    """Return the table of what was proven, and below it the counts and how to have the same once more."""
    cells = [
        (f"{row.patch}@{row.revision}", row.where, _word(row.alone), _word(row.patched), row.verdict)
        for row in rows
    ]
    counts = {
        word: sum(row.verdict == word for row in rows) for word in (PROVEN, HARMLESS, UNSHOWN, FAILS, NOT_RUN)
    }
    told = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    foot = f"{told or 'no patch applies here'}; {_where(options)}, seed {options.seed}"
    return "\n".join([*_aligned(_HEAD, cells, [row.why for row in rows]), "", foot])


def tries(items: Sequence[Try], path: str, options: Options) -> str:
    """Return the table of what was tried, and below it what was written."""
    cells = [(item.patch, ", ".join(row.means for row in item.rows) or "not written") for item in items]
    why = [item.why or (item.rows[0].proven or item.rows[0].reason) for item in items]
    count = sum(bool(item.rows) for item in items)
    foot = f"{count} of {len(items)} written to {path}" if count else f"nothing is written to {path}"
    foot += f"; {_where(options)}, seeds {', '.join(seeds(options.seed))}"
    if count:
        foot += f"; OVERLAY_TRUST={path} goes by it"
    if not items:
        return f"each patch knows its source here; {foot}"
    return "\n".join([*_aligned(("patch", "verdict"), cells, why), "", foot])


def _where(options: Options) -> str:
    where = "the CPU, any GPU hidden" if options.device == "cpu" else "the GPU"
    beside = ", ".join(f"{name} {version or 'absent'}" for name, version in options.beside.items())
    return f"on {where}, {beside}"


def _aligned(head: Sequence[str], cells: Sequence[Sequence[str]], below: Sequence[str]) -> list[str]:
    """Return rows in columns, each with a text below it."""
    widths = [max(len(row[column]) for row in (head, *cells)) for column in range(len(head))]
    lines = []
    for row, text in zip((head, *cells), ("", *below), strict=True):
        lines.append("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
        indent = " " * 4
        lines += textwrap.wrap(
            text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
        )
    return lines


def _word(outcome: Outcome | None) -> str:
    return "-" if outcome is None else _WORDS.get(outcome.outcome, outcome.outcome)
