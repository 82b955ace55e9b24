"""`overlay schema`: what the commands print with `--json`, as a JSON schema."""

from __future__ import annotations

import json
import os

from overlay.commands.output import EXIT_OK, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from overlay.enabling.engine import Engine

#: Beside this file.
SCHEMA = "output.schema.json"


def add(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command to a parser."""
    add_command("schema", _schema, "print the JSON schema of what the commands print with --json")


def _schema(_: Engine, arguments: argparse.Namespace) -> int:
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), SCHEMA), encoding="utf-8") as file:
        text = file.read()
    show(arguments, json.loads(text), text.rstrip)
    return EXIT_OK
