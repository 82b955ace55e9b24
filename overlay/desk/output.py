"""How commands print, which exit codes they have, and what several of them take."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from overlay.errors import ReportError
from overlay.model.text import wrap
from overlay.source.source import importable

#: All is well; the answer is no; the question cannot be understood; Ctrl-C.
EXIT_OK, EXIT_LOUD, EXIT_USAGE, EXIT_STOPPED = 0, 1, 2, 130


def show(arguments: argparse.Namespace, data: Any, table: Callable[[], str]) -> None:
    """Print data as JSON if that was asked for, else as a table. Raises `ReportError`."""
    write(json.dumps(data, indent=2) if arguments.json else table())


def write(text: str) -> None:
    """Write to standard output. Raises `ReportError` if that takes no more; a closed pipe wants no more."""
    try:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # a path need not be printable here
        print(text, flush=True)
    except OSError as error:
        # Drop what is still buffered: the interpreter would fail on it again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise ReportError(f"the output cannot be written: {error}") from error


def say(text: str) -> None:
    """Write a remark to standard error: in one line, or wrapped if a person reads it on a terminal."""
    said = f"overlay: {text}"
    sys.stderr.write(f"{wrap(said, '  ', first='') if sys.stderr.isatty() else said}\n")


def folder(text: str) -> str:
    """Read an argument that names a place to import from."""
    if importable(text):
        return text
    what = "is neither a folder nor an archive to import from" if os.path.exists(text) else "does not exist"
    raise argparse.ArgumentTypeError(
        f"{text!r} {what}: name a site-packages, a checkout, an unpacked wheel, or a wheel"
    )


def adder(commands: Any) -> Callable[..., argparse.ArgumentParser]:
    """Return what adds a command to the commands of a parser: its name, what it runs, and what that does."""

    def add(name: str, command: Callable[..., int], text: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = commands.add_parser(
            name, help=text, description=text, allow_abbrev=False
        )
        parser.add_argument("--json", action="store_true", help="print JSON instead of text")
        parser.set_defaults(command=command)
        return parser

    return add


def add_selection(parser: argparse.ArgumentParser, what: str) -> None:
    """Let a command take a selection. `what` says of what."""
    form = "ids, globs, all, none, and -ID to drop one, separated by commas or spaces"
    parser.add_argument("--patches", metavar="SELECTION", help=f"{what}: {form}")


def add_sites(parser: argparse.ArgumentParser) -> None:
    """Let a command look elsewhere than in this interpreter's path."""
    what = "look in this folder or wheel instead of this Python; repeatable"
    parser.add_argument("--site", action="append", type=folder, metavar="DIR", help=what)
