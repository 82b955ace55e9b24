"""Reads what the processes of a whole job left in the folder that `OVERLAY_LEDGER_DIR` names."""

from __future__ import annotations

import json
import os
from glob import glob

from overlay.base.record import TYPE_CHECKING, Record
from overlay.effect import combined, told
from overlay.errors import ReportError
from overlay.outcome.files import ENDING, LEDGER, PROCESS
from overlay.pinning.agreement import spans
from overlay.report import inputs
from overlay.report.ledgers import compare, distinct

if TYPE_CHECKING:
    from typing import Any

    from overlay.effect import Effect, Number
    from overlay.report.inputs import Ledger


#: What comes of a file that cannot be read, or is none.
_BROKEN = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, ReportError)
_MOST_RANKS = 1 << 22


class Process(Record):
    """The file of one process, as far as it is read."""

    #: The digest in the name of its ledger, which it may share with others.
    ledger: str
    #: `None` in a process of no rank.
    rank: int | None
    world: int | None
    host: str
    pid: int
    #: Whether it came to an end of its own.
    ended: bool
    #: By patch, its figures.
    effects: dict[str, dict[str, Number]]


class Job(Record):
    """What the processes of a job have reported."""

    #: One for each process, under its rank if it has one.
    ledgers: tuple[Ledger, ...]
    #: By patch, what all processes counted together, and in how many it was reached.
    effects: dict[str, tuple[Effect, int]]
    #: Ranks of which there should be a ledger, and is none.
    missing: tuple[int, ...]
    #: Ranks, or other processes, that did not come to their end: what they counted last may be missing.
    cut_short: tuple[str, ...]
    #: Sentences on files that cannot be read.
    unreadable: tuple[str, ...]

    def gaps(self) -> list[str]:
        """Return sentences on ledgers that are missing, incomplete or unreadable."""
        found = [f"There is no ledger of {spans(self.missing)}."] if self.missing else []
        if self.cut_short:
            found.append(f"{len(self.cut_short)} of {len(self.ledgers)} did not come to an end of their own.")
        if self.unreadable:
            found.append(f"Files that cannot be read: {'; '.join(self.unreadable)}.")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as `overlay report --json` prints it."""
        groups, differences = compare(self.ledgers)
        return {
            "processes": len(self.ledgers),
            "groups": [
                {
                    "name": group.name,
                    "processes": len(group.ledgers),
                    "patches": {patch.patch: patch.state for patch in group.first.status.patches},
                }
                for group in groups
            ],
            "differences": [
                {"fact": one.fact, "said": [list(pair) for pair in one.said]} for one in differences
            ],
            "effects": {
                name: {"values": effect.values, "processes": count, "told": told(effect)}
                for name, (effect, count) in self.effects.items()
            },
            "missing": list(self.missing),
            "cut_short": list(self.cut_short),
            "unreadable": list(self.unreadable),
        }


def read(folder: str) -> Job:
    """Read the ledgers in a folder. Raises `ReportError` if there is none."""
    ledgers: dict[str, Ledger] = {}
    found, unreadable = [], []
    worlds: dict[int, set[int]] = {}
    cut_short = []
    for name in sorted(glob(f"{PROCESS}*{ENDING}", root_dir=folder)):
        try:
            own = _process(os.path.join(folder, name))
            if own.ledger not in ledgers:
                ledgers[own.ledger] = inputs.ledger(os.path.join(folder, f"{LEDGER}{own.ledger}{ENDING}"))
        except _BROKEN as error:
            unreadable.append(f"{name}: {error}")
            continue
        label = f"process {own.pid} on {own.host}, of no rank"
        if own.rank is not None:
            label = f"rank {own.rank}"
            worlds.setdefault(own.world or 0, set()).add(own.rank)
        if not own.ended:
            cut_short.append(label)
        found.append(ledgers[own.ledger].replace(name=label, figures=own.effects))
    if not found:
        raise ReportError(f"no process has left a ledger in {folder} (OVERLAY_LEDGER_DIR)")
    missing = {rank for world, ranks in worlds.items() for rank in range(world) if rank not in ranks}
    found.sort(key=lambda ledger: (not ledger.name.startswith("rank "), len(ledger.name), ledger.name))
    found = distinct(found)
    return Job(
        ledgers=tuple(found),
        effects=_together(found),
        missing=tuple(sorted(missing)),
        cut_short=tuple(cut_short),
        unreadable=tuple(unreadable),
    )


def table(job: Job) -> str:
    """Return a summary for a terminal."""
    groups, differences = compare(job.ledgers)
    said = "which say the same" if len(groups) == 1 else f"which say {len(groups)} things"
    lines = [f"{len(job.ledgers)} processes, {said}"]
    for group in groups:
        states: dict[str, list[str]] = {}
        for patch in group.first.status.patches:
            states.setdefault(patch.state, []).append(patch.patch)
        lines += [group.name, *(f"  {state}: {', '.join(names)}" for state, names in states.items())]
    for one in differences:
        lines += [f"they differ in {one.fact}", *(f"  {who}: {what}" for who, what in one.said)]
    lines += ["in this job, over all processes that reached it:"]
    lines += [
        f"  {name} {told(effect)} ({count} process{'es' if count != 1 else ''})"
        for name, (effect, count) in job.effects.items()
        if count
    ]
    never = [name for name, (_, count) in job.effects.items() if not count]
    if never:
        lines.append(f"  nothing to do for: {', '.join(never)}")
    if job.missing:
        lines.append(f"no ledger of {spans(job.missing)}")
    if job.cut_short:
        lines.append(
            f"without an end, so that the last minutes may be missing: {len(job.cut_short)} processes"
        )
    lines += [f"cannot be read: {text}" for text in job.unreadable]
    return "\n".join(lines)


def _together(ledgers: list[Ledger]) -> dict[str, tuple[Effect, int]]:
    """Return the combined figures of all processes, by patch."""
    declared: dict[str, Effect] = {}
    for status in {id(ledger.status): ledger.status for ledger in ledgers}.values():
        for patch in status.patches:
            if patch.effect is not None:
                declared.setdefault(patch.patch, patch.effect)
    found = {}
    for name, effect in declared.items():
        values: dict[str, Number] = {}
        count = 0
        for ledger in ledgers:
            if name in ledger.figures:
                values = combined(values, ledger.figures[name], effect)
                count += 1
        if values and any(figure.name == "calls" for figure in effect.figures):
            values.setdefault("calls", 0)
        found[name] = (effect.replace(values=values), count)
    return found


def _process(path: str) -> Process:
    """Return the file of a process. Raises one of `_BROKEN` if it is none."""
    with open(path, encoding="utf-8") as file:
        own: Process = inputs.record(Process, json.load(file))
    if not 0 <= (own.rank or 0) < _MOST_RANKS or not 0 <= (own.world or 0) <= _MOST_RANKS:
        raise ValueError(f"rank {own.rank} of {own.world} ranks")
    if not own.ledger.isalnum():
        raise ValueError(f"{own.ledger!r} names no ledger")
    effects = {
        str(patch): {str(key): value for key, value in values.items() if type(value) in (int, float)}
        for patch, values in own.effects.items()
    }
    return own.replace(effects=effects)
