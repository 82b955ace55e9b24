"""The command `overlay report`."""

from __future__ import annotations

import os

from overlay.desk.audit.audit import make_audit
from overlay.desk.output import EXIT_OK, say, show
from overlay.desk.report import page
from overlay.desk.report.job import read
from overlay.desk.report.page import view_of_plan
from overlay.errors import ReportError
from overlay.model.record import TYPE_CHECKING
from overlay.model.whole import write_whole
from overlay.source.source import InstalledTree

if TYPE_CHECKING:
    import argparse

    from overlay.runtime.engine import Engine

#: What every page has near its beginning.
_TITLE = b"<title>overlay: "


def write(engine: Engine, arguments: argparse.Namespace) -> int:
    """Write the page, or print what a job left. Raises `ReportError` for what cannot be read or written."""
    path: str = arguments.output or ""
    job = read(arguments.job) if arguments.job else None
    if not path:
        if job is None:
            raise ReportError("name a file for the page (-o FILE), or the folder of a job's ledgers")
        show(arguments, job.to_dict(), job.table)
        return EXIT_OK
    audits = []
    for site in arguments.audit or ([] if job else [None]):
        tree = InstalledTree(site)
        plan = engine.plan_each(tree)
        view = view_of_plan(site or "this environment", plan)
        audits.append((view, make_audit(engine, plan, tree)))
    text, first = page.render(engine.known(), job, audits)
    data = text.encode("utf-8", errors="backslashreplace")
    if os.path.isfile(path) and os.path.getsize(path):
        with open(path, "rb") as file:
            is_page = _TITLE in file.read(4096)
        if not is_page:
            what = f"{path} exists and is no report of overlay's"
            raise ReportError(f"{what}, so nothing was written: name another file")
    try:
        write_whole(path, data)
    except OSError as error:
        raise ReportError(f"the report cannot be written: {error}") from error
    say(f"wrote {os.path.abspath(path)} ({len(data) / 1e3:.0f} kB): {first.tally()}")
    say(first.text)
    return EXIT_OK
