"""The command `overlay report`."""

from __future__ import annotations

from overlay.base.record import TYPE_CHECKING
from overlay.commands.output import say
from overlay.reading.source import InstalledTree
from overlay.report import charts, drawing, inputs, page, place

if TYPE_CHECKING:
    import argparse

    from overlay.enabling.engine import Engine


def write(engine: Engine, arguments: argparse.Namespace) -> int:
    """Write the page. Raises `ReportError` if something cannot be read, drawn or written."""
    place.check(arguments.output)
    drawing.needed()
    ledgers = _distinct([inputs.ledger(path) for path in arguments.ledger])
    sites: list[str | None] = list(arguments.audit)
    if not sites and not ledgers:
        sites = [None]
    selection = engine.everything()
    audits = [
        page.audit_view(site or "this environment", engine.plan(selection, site), InstalledTree(site))
        for site in sites
    ]
    text, first = page.render(
        title=arguments.title,
        patches=engine.known(),
        audits=audits,
        ledgers=ledgers,
        tree=InstalledTree(),
        suites=[suite for path in arguments.suite for suite in inputs.suites(path)],
        charts=[charts.chart(figure) for path in arguments.figures for figure in inputs.figures(path)],
        support=inputs.support(),
    )
    said = place.write(arguments.output, text)
    say(f"{said}: {first.tally()}")
    say(first.text)
    return 0


def _distinct(ledgers: list[inputs.Ledger]) -> list[inputs.Ledger]:
    """Return the ledgers under names that differ, in the order in which they were given."""
    names = [ledger.name for ledger in ledgers]
    return [
        ledger if names.count(ledger.name) == 1 else ledger.replace(name=f"{ledger.name} ({place + 1})")
        for place, ledger in enumerate(ledgers)
    ]
