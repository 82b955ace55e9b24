"""`overlay status`: what `enable()` arms in a fresh process."""

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
    status = add_command("status", _status, "enable overlay in a fresh process, and show what is armed")
    what = "what to select (default: OVERLAY_PATCHES, or all)"
    status.add_argument("--patches", metavar="SELECTION", help=what)


def _status(engine: Engine, arguments: argparse.Namespace) -> int:
    status = engine.enable(arguments.patches)
    engine.disable()
    show(arguments, status.to_dict(), lambda: tables.status(status))
    loud = any(
        patch.state in ("failed", "incomplete") or (patch.verdict is not None and patch.verdict.loud)
        for patch in status.patches
        if patch.patch not in status.companions
    )
    return EXIT_LOUD if loud else EXIT_OK
