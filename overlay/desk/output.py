"""How commands print, and which exit codes they have."""

from __future__ import annotations

import io
import json
import os
import sys

from overlay.errors import OverlayError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from typing import Any

#: All is well; the answer is no; the question cannot be understood.
EXIT_OK, EXIT_LOUD, EXIT_USAGE = 0, 1, 2
#: What the help of an option says of the form of a selection.
SELECTION = "ids, globs, all, none, and -ID to drop one, separated by commas or spaces"
#: As a shell has them, for a command that cannot be started.
EXIT_NO_COMMAND, EXIT_NOT_FOUND = 126, 127


class OutputError(Exception):
    """Standard output takes no more."""


class FolderError(OverlayError):
    """A path on the command line that is no folder, or none to import from."""


def show(arguments: argparse.Namespace, data: Any, table: Callable[[], str]) -> None:
    """Print data as JSON if that was asked for, else as a table. Raises `OutputError`."""
    text = json.dumps(data, indent=2) if arguments.json else table()
    arguments.progress.close()
    try:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # a path need not be printable here
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(error) from error


def say(text: str) -> None:
    """Write a remark to standard error, apart from the output."""
    sys.stderr.write(f"overlay: {text}\n")


def folder(text: str) -> str:
    """Read an argument that names a place to import from. Raises `FolderError`."""
    from overlay.source.locate import importable

    if importable(text):
        return text
    what = "is neither a folder nor an archive to import from" if os.path.exists(text) else "does not exist"
    # Not as the parser would say it, which prints all options of the command first.
    raise FolderError(f"{text!r} {what}: name a site-packages, a checkout, an unpacked wheel, or a wheel")


def add_sites(parser: argparse.ArgumentParser) -> None:
    """Let a command look elsewhere than in this interpreter's path."""
    what = "look in this folder (or wheel) only, and where its editable installs lead; repeatable"
    parser.add_argument("--site", action="append", type=folder, metavar="DIR", help=what)
    what = "the folder that is / to what lies in the sites, as for an unpacked image"
    parser.add_argument("--root", type=folder, metavar="DIR", help=what)
