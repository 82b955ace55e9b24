"""`overlay packs`: patches of third parties that are installed."""

from __future__ import annotations

from overlay.base import settings
from overlay.commands import tables
from overlay.commands.output import EXIT_OK, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from overlay.enabling.engine import Engine


def add(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command to a parser."""
    add_command("packs", _packs, "list the packs that are installed, without importing them")


def _packs(_: Engine, arguments: argparse.Namespace) -> int:
    from overlay.catalogue.packs import installed

    found = installed()
    wanted = settings.packs()
    data = [{**pack.to_dict(), "loaded": pack.name in wanted} for pack in found]
    show(arguments, data, lambda: tables.packs(found, wanted))
    return EXIT_OK
