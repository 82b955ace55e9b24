"""`overlay doctor`: whether worker processes are armed here, and why not."""

from __future__ import annotations

from overlay.commands import tables
from overlay.commands.output import EXIT_LOUD, EXIT_OK, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from overlay.enabling.engine import Engine


def add(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command to a parser."""
    add_command("doctor", _doctor, "say whether worker processes are armed here, and why not")


def _doctor(_: Engine, arguments: argparse.Namespace) -> int:
    from overlay.arming.doctor import diagnose

    found = diagnose()
    show(arguments, found.to_dict(), lambda: tables.diagnosis(found))
    return EXIT_OK if found.active else EXIT_LOUD
