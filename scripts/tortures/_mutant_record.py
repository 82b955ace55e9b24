"""What became of the mutants of each patch when they were last run, as `docs/mutants.json` keeps it.

A run of all takes long, so patches are run at different times, and each row says when.
"""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from records import _record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

RECORD = Path(__file__).resolve().parents[2] / "docs" / "mutants.json"
#: A patch: the day, the seed, how many mutants beside each shape, and the number of mutants by outcome.
Record = dict[str, dict[str, Any]]


def recorded() -> Record:
    """Return the record, empty if there is none."""
    record: Record = _record.read(RECORD)
    return record


def write(counts: Mapping[str, Mapping[str, int]], seed: str, beside: int) -> None:
    """Write what became of the mutants of patches, by outcome, and keep the rows of all others."""
    day = datetime.now(tz=timezone.utc).date().isoformat()
    record = recorded()
    for patch, count in counts.items():
        record[patch] = {"run": day, "seed": seed, "beside": beside, "outcomes": dict(sorted(count.items()))}
    _record.write(RECORD, dict(sorted(record.items())), depth=1)


def table(patches: Iterable[str], columns: Sequence[str]) -> str:
    """Return the record of patches as text in columns, with the day and the seed of each row."""
    record = recorded()
    head = f"{'patch':28}{'mutants':>8}" + "".join(f"{column:>9}" for column in columns)
    lines = [f"{head}  {'run on':10}  seed"]
    total = dict.fromkeys(columns, 0)
    for patch in sorted({*patches} & {*record}):
        row = record[patch]
        counts = {column: row["outcomes"].get(column, 0) for column in columns}
        total = {column: total[column] + counts[column] for column in columns}
        lines.append(f"{_line(patch, counts)}  {row['run']}  {row['seed']}")
    lines.append(_line("all", total))
    return "\n".join([*lines, f"not run on {len({*patches} - {*record})} other patches"])


def _line(name: str, counts: Mapping[str, int]) -> str:
    numbers = "".join(f"{count:9}" for count in counts.values())
    return f"{name:28}{sum(counts.values()):8}{numbers}"
