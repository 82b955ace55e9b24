"""The command line: `overlay` and `python -m overlay`.

Exit codes: 0 all is well; 1 a patch that was asked for has a loud verdict (unsupported, conflict, expired)
or failed, a site that was asked for does not exist, a lock differs, no start-up file is active, or a test of
an upstream is lost; 2 the command, a setting, a folder, a lock, a recipe or a report's input cannot be
understood, a folder holds no upstream, or the output cannot be written.
"""

from __future__ import annotations

import argparse
import os
import sys

from overlay._version import __version__
from overlay.commands import digest, doctor, lock, new, packs, patches, plan, run, schema, status
from overlay.commands.output import (
    EXIT_LOUD,
    EXIT_OK,
    EXIT_USAGE,
    FolderError,
    OutputError,
    folder,
    say,
)
from overlay.commands.progress import Progress
from overlay.enabling.engine import Engine
from overlay.errors import LockError, OverlayError, ReportError, SelectionError, SuiteError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = _parser(suite="suite" in (sys.argv[1:] if argv is None else argv)[:1])
    try:
        return _run(parser.parse_args(argv))
    except (SelectionError, LockError, ReportError, SuiteError, FolderError) as error:
        say(str(error))
        return EXIT_USAGE
    except OverlayError as error:
        say(str(error))
        return EXIT_LOUD
    except BrokenPipeError:  # `overlay list | head`
        _give_up_output()
        return EXIT_OK
    except OutputError as error:
        _give_up_output()
        say(f"the output cannot be written: {error}")
        return EXIT_USAGE


def _run(arguments: argparse.Namespace) -> int:
    """Run a command, and take its progress away before anybody says how it ended."""
    command: Callable[[Engine, argparse.Namespace], int] = arguments.command
    arguments.progress = Progress(sys.stderr)
    try:
        return command(Engine(progress=arguments.progress), arguments)
    finally:
        arguments.progress.close()


def _give_up_output() -> None:
    """Send what is still buffered to nowhere, or the interpreter would fail on it once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser(*, suite: bool) -> argparse.ArgumentParser:
    """Return the parser. What only `overlay suite` needs is imported for `suite` alone."""
    parser = argparse.ArgumentParser(
        prog="overlay",
        description="Version-gated runtime patches for an installed Megatron-Core, slime or verl.",
        epilog="Exit codes: 0 all is well; 1 a selected patch cannot be applied; 2 usage, settings, output.",
    )
    parser.add_argument("--version", action="version", version=f"overlay {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, command: Callable[..., int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.add_argument("--json", action="store_true", help="print JSON instead of a table")
        sub.set_defaults(command=command)
        return sub

    for one in (patches, plan, status, digest):
        one.add(add)
    run.add(commands)
    for other in (doctor, packs, lock, new, schema):
        other.add(add)
    text = "run upstream's own tests with and without overlay: list, run, diff, report"
    tests = commands.add_parser("suite", help=text, description=text)
    if suite:
        from overlay.suite.commands import add_arguments

        add_arguments(tests)
    _add_report(commands)
    return parser


def _add_report(commands: Any) -> None:
    text = "write one HTML page about installations, the ranks of a job, test results and figures"
    report = commands.add_parser("report", help=text, description=text)
    what = "the folder of a job's ledgers (OVERLAY_LEDGER_DIR): without -o, what is in it is printed"
    report.add_argument("job", nargs="*", metavar="DIR", type=folder, help=what)
    report.add_argument("--json", action="store_true", help="print JSON instead of a table, without -o")
    report.add_argument("-o", "--output", metavar="FILE", help="the page, such as report.html")
    report.add_argument("--title", default="overlay: what was decided", metavar="TEXT", help="its heading")
    for name, metavar, what in (
        ("--ledger", "FILE", "what a process's overlay.status().to_dict() is as JSON; one for each rank"),
        ("--suite", "RESULT", "a folder of results of `overlay suite`, or what it printed with --json"),
        ("--figures", "FILE", "what a benchmark wrote with --json"),
    ):
        report.add_argument(name, action="append", default=[], metavar=metavar, help=f"{what}; repeatable")
    report.add_argument(
        "--audit",
        action="append",
        default=[],
        type=folder,
        metavar="DIR",
        help="an installation, unpacked wheel or checkout; repeatable (default without --ledger: this one)",
    )
    report.set_defaults(command=_report)


def _report(engine: Engine, arguments: argparse.Namespace) -> int:
    from overlay.report import command

    return command.write(engine, arguments)
