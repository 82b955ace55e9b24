"""What `overlay prove` prints for people."""

from __future__ import annotations

import textwrap

from overlay.proving.prove import FAILS, HARMLESS, PROVEN, UNSHOWN
from overlay.proving.runner import NOT_RUN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from overlay.proving.prove import Options, Row
    from overlay.proving.start import Outcome

WIDTH = 110
#: What an outcome is called in the table, as in that of `scripts/demo`.
_WORDS = {"holds": "right", "wrong": "wrong"}
_HEAD = ("patch", "on", "alone", "patched", "verdict", "why")


def table(rows: Sequence[Row], options: Options, torch: str) -> str:
    """Return the table of what was proven, and below it the counts and how to have the same once more."""
    cells = [
        (f"{row.patch}@{row.revision}", row.where, _word(row.alone), _word(row.patched), row.verdict, row.why)
        for row in rows
    ]
    widths = [max(len(row[column]) for row in (_HEAD, *cells)) for column in range(len(_HEAD) - 1)]
    lines = []
    for row in (_HEAD, *cells):
        lines.append("  ".join(f"{cell:<{width}}" for cell, width in zip(row[:-1], widths, strict=True)).rstrip())
        if row is _HEAD:
            lines[-1] = lines[-1].rstrip()
            continue
        lines += textwrap.wrap(
            row[-1], WIDTH, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False
        )
    counts = {word: sum(row.verdict == word for row in rows) for word in (PROVEN, HARMLESS, UNSHOWN, FAILS, NOT_RUN)}
    told = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    where = "the CPU, any GPU hidden" if options.device == "cpu" else "the GPU"
    lines += ["", f"{told or 'no patch applies here'}; on {where}, torch {torch or '(none)'}, seed {options.seed}"]
    return "\n".join(lines)


def _word(outcome: Outcome | None) -> str:
    return "-" if outcome is None else _WORDS.get(outcome.outcome, outcome.outcome)
