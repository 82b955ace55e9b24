"""`overlay run`: a command whose Python processes are all armed."""

from __future__ import annotations

import os

from overlay.base import settings
from overlay.commands.output import EXIT_LOUD, EXIT_NO_COMMAND, EXIT_NOT_FOUND, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from overlay.enabling.engine import Engine


def add(commands: Any) -> None:
    """Add the command to the commands of a parser. It prints nothing of its own, so there is no `--json`."""
    text = "arm every Python process of a command: run -- torchrun ..."
    run = commands.add_parser("run", help=text, description=text)
    run.add_argument("--patches", metavar="SELECTION", help="sets OVERLAY_PATCHES")
    run.add_argument("--strict", action="store_true", help="sets OVERLAY_STRICT")
    run.add_argument("--pin", metavar="LOCK", help="sets OVERLAY_PIN")
    run.add_argument("words", nargs="+", metavar="COMMAND", help="after --, with its arguments")
    run.set_defaults(command=_run)


def _run(_: Engine, arguments: argparse.Namespace) -> int:
    """Become the command, with the environment by which start-up files arm."""
    from overlay.arming.doctor import diagnose

    environ = {**os.environ, "OVERLAY": "1"}
    if arguments.patches is not None:
        environ["OVERLAY_PATCHES"] = arguments.patches
    if arguments.strict:
        environ["OVERLAY_STRICT"] = "1"
    pin = arguments.pin if arguments.pin is not None else settings.pin(environ)
    if pin:
        # Workers run in other folders.
        environ["OVERLAY_PIN"] = pin if pin.startswith(settings.DIGEST_PREFIX) else os.path.abspath(pin)
    settings.pin(environ)
    if trust := settings.trust(environ):
        environ["OVERLAY_TRUST"] = os.path.abspath(trust)
    found = diagnose()
    if not found.active:
        say(f"nothing is started, because no process would be armed: {found.reason}")
        return EXIT_LOUD
    arguments.progress.close()
    try:
        os.execvpe(arguments.words[0], arguments.words, environ)  # noqa: S606 -- the command that was asked for
    except FileNotFoundError:
        say(f"{arguments.words[0]}: command not found")
        return EXIT_NOT_FOUND
    except OSError as error:
        say(f"{arguments.words[0]} cannot be started: {error}")
        return EXIT_NO_COMMAND
