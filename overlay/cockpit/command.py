"""Bare `overlay`: the cockpit."""

from __future__ import annotations

from overlay.cockpit.screen import screen
from overlay.cockpit.state import look
from overlay.commands.output import EXIT_LOUD, EXIT_OK, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from overlay.enabling.engine import Engine


def show_cockpit(engine: Engine, arguments: argparse.Namespace) -> int:
    """Print the cockpit. What is selected and cannot be applied is exit code 1, as everywhere."""
    found = look(engine)
    show(arguments, found.to_dict(), lambda: screen(found))
    return EXIT_LOUD if found.refused else EXIT_OK
