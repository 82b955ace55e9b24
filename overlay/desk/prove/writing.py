"""Rows of the table for what is installed here: what `overlay prove --write FILE` adds to a file.

The file is a table, which `OVERLAY_TRUST` names. A pack's own is the one beside its patches.
"""

from __future__ import annotations

import json
import os
import tempfile
from datetime import datetime, timezone

from overlay.desk.lint import faults
from overlay.desk.prove import prove
from overlay.desk.prove.forked import HOLDS, WRONG
from overlay.desk.prove.rows import text_of, too_weak, trial, unjudged
from overlay.desk.prove.runner import NOT_RUN
from overlay.errors import OverlayError, TrustError
from overlay.model.record import TYPE_CHECKING, Record
from overlay.source.registry import mutants
from overlay.source.table import Row, rows_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from overlay.patch import Patch
    from overlay.source.source import Tree
    from overlay.source.table import Table
    from overlay.verdict import Verdict

#: Seeds that a contract is run with.
SEEDS = 3


class File(Record):
    """A table as it is in its file."""

    sources: Mapping[str, object] = {}
    rows: tuple[Row, ...] = ()
    mutants: Mapping[str, object] = {}

    @classmethod
    def read(cls, path: str) -> File:
        """Return a file, empty if there is none. Raises `TrustError` for what is no table."""
        try:
            with open(path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return cls()
        except OSError as error:
            raise TrustError(f"{path} cannot be read: {error}") from error
        try:
            rows = rows_in(data, path)
        except OverlayError as error:
            raise TrustError(f"{error}; mend it, or name another file") from error
        said = json.loads(data)
        return cls(sources=said.get("sources", {}), rows=tuple(rows), mutants=said.get("mutants", {}))

    def plus(self, rows: Iterable[Row]) -> File:
        """Return the file with more rows: they replace what it said of the same sources."""
        new = [*rows]
        gone = {(row.patch, row.target, digest) for row in new for digest in row.on}
        kept = []
        for row in self.rows:
            on = {
                digest: names
                for digest, names in row.on.items()
                if (row.patch, row.target, digest) not in gone
            }
            if on:
                kept.append(row.replace(on=on))
        today = datetime.now(tz=timezone.utc).date().isoformat()
        named = {name: {"date": today} for row in new for name in row.sources()}
        return self.replace(sources={**named, **self.sources}, rows=(*kept, *new))

    def write(self, path: str) -> None:
        """Write the whole of it, or leave what was there. Raises `TrustError`."""
        text = text_of(dict(self.sources), self.rows, dict(self.mutants))
        try:
            with open(f"{path}.new", "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(f"{path}.new", path)
        except OSError as error:
            raise TrustError(f"{path} cannot be written: {error}") from error


class Try(Record):
    """A patch on a source that it was not tested on, and what came of its contract there."""

    patch: str
    #: Why no row was written, empty if one was.
    why: str = ""
    #: Whether the contract was run and does not hold.
    failed: bool = False
    rows: tuple[Row, ...] = ()


def seeds(first: str) -> list[str]:
    """Return the seeds that follow from the first."""
    start = int(first) if first.isdecimal() else 0
    return [first, *(str(start + step) for step in range(1, SEEDS))]


def tries(
    wanted: Sequence[tuple[Patch, Verdict]],
    tree: Tree,
    table: Table,
    options: prove.Options,
    *,
    judged: bool,
) -> Iterator[Try]:
    """Try patches that do not know their source here, and yield what came of each.

    Args:
        wanted: Patches with what is decided on them, each after those that it requires.
        tree: What that was decided on.
        table: What they were tested on.
        options: How contracts are run; the first seed.
        judged: Whether somebody has read how the source differs.

    """
    for patch, verdict in wanted:
        name = " + ".join(f"{one.project} {one.version}" for one in verdict.targets if one.version)
        found = trial(patch, tree, table, f"{name}, here")
        wrong = found.refused or "; ".join(faults(patch))
        if wrong or found.absent:
            yield Try(patch=patch.id, why=wrong, rows=() if wrong else found.absent)
            continue
        differ = [] if judged else unjudged(found.choices[0], patch, table)
        if differ:
            why = f"the patch replaces {differ[0]}, and was not tested with this source of it: "
            yield Try(patch=patch.id, why=f"{why}read how it differs, then add --judged")
            continue
        if not judged and (weak := too_weak(mutants(patch.id))):
            yield Try(patch=patch.id, why=f"{weak}; read how the source differs, then add --judged")
            continue
        yield _try(patch, verdict, found.choices, found.alone, options)


def _try(
    patch: Patch,
    verdict: Verdict,
    choices: Sequence[tuple[Row, ...]],
    alone: tuple[Row, ...],
    options: prove.Options,
) -> Try:
    """Run the contract with each choice of variants, up to the first that holds."""
    why = ""
    applies = [(patch, verdict.replace(verdict="apply"))]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trial.json")
        for rows in choices:
            File(rows=rows).write(path)
            found = []
            for seed in seeds(options.seed):
                found += prove.prove(applies, options.replace(seed=seed, trust=path))
                if found[-1].verdict not in (prove.PROVEN, prove.UNSHOWN):
                    break
            last = found[-1]
            words = {one.alone.outcome for one in found if one.alone is not None}
            if last.verdict == NOT_RUN:
                return Try(patch=patch.id, why=last.why)
            if words == {HOLDS} and last.verdict == prove.UNSHOWN:
                return Try(patch=patch.id, rows=_told(alone, options))
            if all(one.verdict == prove.PROVEN for one in found) and words == {WRONG}:
                return Try(patch=patch.id, rows=_told(rows, options))
            why = f"{last.verdict}: {last.why}"
            if all(one.verdict == prove.PROVEN for one in found):
                why = f"upstream alone raises, which need not be the defect: {last.why}"
    return Try(patch=patch.id, why=why, failed=True)


def _told(rows: Iterable[Row], options: prove.Options) -> tuple[Row, ...]:
    """Return rows that say when and how they came about."""
    today = datetime.now(tz=timezone.utc).date().isoformat()
    beside = ", ".join(f"{name} {version or 'absent'}" for name, version in options.beside.items())
    proven = f"proven on {today} with seeds {', '.join(seeds(options.seed))} and {beside}"
    return tuple(row.replace(date=today, proven=proven) for row in rows)
