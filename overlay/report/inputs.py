"""Reads the inputs of a report: JSON from overlay's commands, from processes and from benchmarks."""

from __future__ import annotations

import json
import os

from overlay.base.record import TYPE_CHECKING, Record
from overlay.catalogue.registry import COMPAT
from overlay.effect import Effect, Figure
from overlay.errors import ReportError
from overlay.ledger import PatchStatus, SiteStatus, Status
from overlay.verdict import SiteFinding, TargetVerdict, Verdict

if TYPE_CHECKING:
    from typing import Any


class Ledger(Record):
    """What one process said of itself."""

    #: The file that it stands in, without its ending.
    name: str
    status: Status
    #: By patch, the figures of this process.
    figures: dict[str, dict[str, int | float]] = {}  # noqa: RUF012 -- nobody changes it


class Suite(Record):
    """What `overlay suite` found of one recipe: tests by what became of them."""

    name: str
    #: Tests that pass with and without overlay.
    passing: int
    #: Kind of change to the tests of that kind, each with `id`, `before`, `after` and `reason`.
    changes: dict[str, Any]


#: The kinds of changes in a result of a suite, in the order in which they are shown.
CHANGES = ("lost", "won", "flaky", "changed", "failing")


def read(path: str) -> Any:
    """Return the JSON in a file. Raises `ReportError`."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise ReportError(f"{path} cannot be read: {error}") from error


def ledger(path: str) -> Ledger:
    """Return what `overlay.status().to_dict()` or `overlay status --json` wrote. Raises `ReportError`."""
    data = read(path)
    try:
        # What the processes of a job share is without the process.
        status = record(Status, {"pid": 0, **data})
    except (TypeError, KeyError, AttributeError) as error:
        raise ReportError(f"{path} is no ledger, as `overlay status --json` writes it: {error}") from error
    return Ledger(name=os.path.splitext(os.path.basename(path))[0], status=status)


def suites(path: str) -> list[Suite]:
    """Return the results in a folder of `overlay suite`, or what it printed with `--json`.

    Raises `ReportError`.
    """
    data = read(os.path.join(path, "run.json") if os.path.isdir(path) else path)
    runs = data.get("runs", [data]) if isinstance(data, dict) else data
    try:
        return [_suite(run, path) for run in runs]
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise ReportError(f"{path} is no result that `overlay suite` prints with --json: {error}") from error


def figures(path: str) -> list[Any]:
    """Return the figures that a benchmark wrote. Raises `ReportError`."""
    data = read(path)
    found = data.get("figures") if isinstance(data, dict) else None
    if not isinstance(found, list):
        raise ReportError(f'{path} has no "figures", as the benchmarks write them with --json')
    return found


def support() -> dict[str, dict[str, dict[str, str]]]:
    """Return the support matrix that comes with overlay: release to patch to what was decided there."""
    from importlib.resources import files

    text = files(COMPAT).joinpath("support.json").read_text(encoding="utf-8")
    found: dict[str, dict[str, dict[str, str]]] = json.loads(text)
    return found


#: Records inside of records, by the field that has them.
_INSIDE: dict[tuple[type[Record], str], type[Record]] = {
    (Status, "patches"): PatchStatus,
    (PatchStatus, "verdict"): Verdict,
    (PatchStatus, "sites"): SiteStatus,
    (PatchStatus, "effect"): Effect,
    (Verdict, "targets"): TargetVerdict,
    (TargetVerdict, "findings"): SiteFinding,
    (Effect, "figures"): Figure,
}
#: Types of fields, as they are written, that a record of data has unchanged.
_PLAIN = {"str": (str,), "int": (int,), "bool": (bool,), "int | None": (int, type(None))}


def record(kind: type[Record], data: dict[str, Any]) -> Any:
    """Return a record of the fields that this overlay knows: another one may have written more.

    Raises `TypeError` if a field is missing, or of another type.
    """
    known = {name: data[name] for name in kind._fields if name in data}
    for name, value in known.items():
        said, inside = kind.__annotations__[name], _INSIDE.get((kind, name))
        if said in _PLAIN and type(value) not in _PLAIN[said]:
            raise TypeError(f"{name} is {str(value)[:60]!r}")
        if said.startswith("tuple"):
            known[name] = tuple(str(item) if inside is None else record(inside, item) for item in value)
        elif inside is not None and value is not None:
            known[name] = record(inside, value)
    return kind(**known)


def _suite(run: dict[str, Any], path: str) -> Suite:
    difference = run.get("difference", run)
    changes = {
        kind: [
            {name: str(item.get(name, "")) for name in ("id", "before", "after", "reason")} for item in group
        ]
        for kind, group in ((kind, difference[kind]) for kind in CHANGES)
    }
    name = str(run.get("recipe") or os.path.splitext(os.path.basename(path))[0])
    return Suite(name=name, passing=int(difference["passing"]), changes=changes)
