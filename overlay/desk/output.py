"""How commands print, and which exit codes they have."""

from __future__ import annotations

import io
import json
import os
import sys
from difflib import get_close_matches

from overlay.errors import OverlayError
from overlay.model.text import wrap

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable
    from typing import Any

#: All is well; the answer is no; the question cannot be understood.
EXIT_OK, EXIT_LOUD, EXIT_USAGE = 0, 1, 2


class OutputError(Exception):
    """Standard output takes no more."""


class FolderError(OverlayError):
    """A path on the command line that is no folder, or none to import from."""


def show(arguments: argparse.Namespace, data: Any, table: Callable[[], str]) -> None:
    """Print data as JSON if that was asked for, else as a table. Raises `OutputError`."""
    text = json.dumps(data, indent=2) if arguments.json else table()
    try:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # a path need not be printable here
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(error) from error


def say(text: str) -> None:
    """Write a remark to standard error, apart from the output: in one line, but for a person's eyes."""
    said = f"overlay: {text}"
    sys.stderr.write(f"{wrap(said, '  ', first='') if sys.stderr.isatty() else said}\n")


def near(word: str, known: Iterable[str]) -> str:
    """Return what was perhaps meant by a word that is not known, or else all that is known."""
    known = sorted(known)
    found = get_close_matches(word, known, n=1)
    listed = [one for one in known if one[0] != "-"] or known
    return f"did you mean {found[0]}?" if found else f"there are: {', '.join(listed)}"


def folder(text: str) -> str:
    """Read an argument that names a place to import from. Raises `FolderError`."""
    from overlay.source.locate import importable

    if importable(text):
        return text
    what = "is neither a folder nor an archive to import from" if os.path.exists(text) else "does not exist"
    # Not as the parser would say it, which prints all options of the command first.
    raise FolderError(f"{text!r} {what}: name a site-packages, a checkout, an unpacked wheel, or a wheel")


def add_selection(parser: argparse.ArgumentParser, what: str) -> None:
    """Let a command take a selection. `what` says of what."""
    form = "ids, globs, all, none, and -ID to drop one, separated by commas or spaces"
    parser.add_argument("--patches", metavar="SELECTION", help=f"{what}: {form}")


def add_sites(parser: argparse.ArgumentParser) -> None:
    """Let a command look elsewhere than in this interpreter's path."""
    what = "look in this folder or wheel instead of this Python; repeatable"
    parser.add_argument("--site", action="append", type=folder, metavar="DIR", help=what)
