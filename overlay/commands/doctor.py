"""`overlay doctor`: whether processes that start here and now are armed, and what to do if they are not."""

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
    add_command(
        "doctor",
        _doctor,
        "say whether a Python process that starts here and now is patched, and what to do if not",
    )


def _doctor(engine: Engine, arguments: argparse.Namespace) -> int:
    from overlay.arming.doctor import examine

    found = examine(engine)
    show(arguments, found.to_dict(), lambda: tables.checkup(found))
    return EXIT_OK if found.armed else EXIT_LOUD
