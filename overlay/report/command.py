"""The command `overlay report`."""

from __future__ import annotations

import os
import tempfile
from functools import partial

from overlay.auditing.audit import make_audit
from overlay.base.record import TYPE_CHECKING
from overlay.commands.output import EXIT_OK, say, show
from overlay.errors import ReportError
from overlay.reading.source import InstalledTree
from overlay.report import charts, drawing, inputs, job, page
from overlay.report.ledgers import distinct

if TYPE_CHECKING:
    import argparse

    from overlay.enabling.engine import Engine


def write(engine: Engine, arguments: argparse.Namespace) -> int:
    """Write the page, or print what a job left. Raises `ReportError` for what cannot be read or written."""
    if arguments.output:
        _check(arguments.output)
    jobs = [job.read(folder) for folder in arguments.job]
    if not arguments.output:
        if not jobs:
            raise ReportError("name a file for the page (-o FILE), or the folder of a job's ledgers")
        for one in jobs:
            show(arguments, one.to_dict(), partial(job.table, one))
        return EXIT_OK
    drawing.needed()
    own = [ledger for one in jobs for ledger in one.ledgers]
    ledgers = distinct([*own, *(inputs.ledger(path) for path in arguments.ledger)])
    sites: list[str | None] = list(arguments.audit)
    if not sites and not ledgers:
        sites = [None]
    # Of the patches that only their ids select, a job has none unless somebody names them.
    selected = engine.chosen("all").ids
    audits, defects = [], []
    for site in sites:
        name, tree = site or "this environment", InstalledTree(site)
        plan = engine.plan_each(tree)
        audits.append(page.audit_view(name, plan, tree, selected))
        defects.append((name, make_audit(engine, plan, tree, selected=selected)))
    text, first = page.render(
        title=arguments.title,
        patches=engine.known(),
        audits=audits,
        defects=defects,
        ledgers=ledgers,
        effects={name: found for one in jobs for name, found in one.effects.items()},
        tree=InstalledTree(),
        suites=[suite for path in arguments.suite for suite in inputs.suites(path)],
        charts=[charts.chart(figure) for path in arguments.figures for figure in inputs.figures(path)],
        support=inputs.support(),
        gaps=[sentence for one in jobs for sentence in one.gaps()],
    )
    said = _save(arguments.output, text)
    say(f"{said}: {first.tally()}")
    say(first.text)
    return EXIT_OK


def _check(path: str) -> None:
    """Raise `ReportError` if no page can be written to a path. Nothing is changed there."""
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path):
        raise ReportError(f"the report cannot be written: {path} is a folder; name a file in it")
    if not os.path.isdir(folder):
        what = "is no folder" if os.path.exists(folder) else "does not exist"
        raise ReportError(f"the report cannot be written: {folder} {what}")
    try:
        if os.path.isfile(path):
            with open(path, "ab"):
                pass
        elif not os.path.exists(path):
            # Rights say little on network drives and in containers: a file that can be made says all.
            with tempfile.TemporaryFile(dir=folder):
                pass
    except OSError as error:
        raise ReportError(f"the report cannot be written: {error}") from error


def _save(path: str, text: str) -> str:
    """Write a page and return a sentence on it. Raises `ReportError`."""
    data = text.encode("utf-8", errors="backslashreplace")
    try:
        with open(path, "wb") as file:
            file.write(data)
    except OSError as error:
        raise ReportError(f"the report cannot be written: {error}") from error
    return f"wrote {os.path.abspath(path)} ({len(data) / 1e6:.1f} MB)"
