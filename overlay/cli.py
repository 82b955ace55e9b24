"""The command line: `overlay` and `python -m overlay`. `docs/settings.md` says what the exit codes mean."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from difflib import get_close_matches

from overlay._version import __version__
from overlay.desk import commands, lock, new, output, run
from overlay.desk.output import EXIT_LOUD, EXIT_OK, EXIT_USAGE, FolderError, OutputError, folder, near, say
from overlay.errors import LockError, OverlayError, ReportError, SelectionError, SettingsError, SuiteError
from overlay.runtime.engine import Engine
from overlay.source.registry import check_whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

#: Of these the user can correct something, so they are exit code 2.
_USAGE = (SelectionError, LockError, ReportError, SuiteError, SettingsError, FolderError)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    command: list[str] = []
    if words[:1] == ["run"]:  # what it starts has options of its own
        own, command = run.split(words[1:])
        words = ["run", *own]
    parser = _parser(suite=words[:1] == ["suite"], prove=words[:1] == ["prove"])
    try:
        arguments = _parsed(parser, words)
        check_whole()
        arguments.words = command
        run_it: Callable[[Engine, argparse.Namespace], int] = arguments.command
        return run_it(Engine(), arguments)
    except _USAGE as error:
        say(str(error))
        return EXIT_USAGE
    except OverlayError as error:
        say(str(error))
        return EXIT_LOUD
    except KeyboardInterrupt:  # what a command has started, it has ended
        say("stopped")
        return EXIT_USAGE
    except BrokenPipeError:  # `overlay list | head`
        _give_up_output()
        return EXIT_OK
    except OutputError as error:
        _give_up_output()
        say(f"the output cannot be written: {error}")
        return EXIT_USAGE


def _parsed(parser: argparse.ArgumentParser, words: list[str]) -> argparse.Namespace:
    """Return what the words mean. Raises `SelectionError` for one that means nothing, with what is near."""
    given: list[str] = []
    for word in words:
        if given[-1:] == ["--patches"] and word[:1] == "-" and word[:2] not in ("-", "--"):
            given[-1] = f"--patches={word}"  # what begins with a drop would be an option else
        else:
            given.append(word)
    choices = parser.get_default("choices")
    known = {*choices, "-h", "--help", "--json", "--version"}
    if given and given[0] not in known:
        if given[0].startswith("-"):
            whole = _parser(suite=True, prove=True).get_default("choices")
            raise SelectionError(f"`overlay` does not take {given[0]!r}; {_command_with(given[0], whole)}")
        hint = "in a shell: overlay, overlay plan or overlay doctor" if given[0] == "status" else ""
        raise SelectionError(f"there is no command {given[0]!r}; {hint or near(given[0], known)}")
    arguments, unknown = parser.parse_known_args(given)
    if unknown:
        said = f"`{arguments.parser.prog}` does not take {unknown[0]!r}"
        raise SelectionError(f"{said}; {near(unknown[0], _options(arguments.parser))}")
    return arguments


def _options(parser: argparse.ArgumentParser) -> set[str]:
    return set(re.findall(r"^ +(?:-\w[^,]*, )?(--[a-z-]+)", parser.format_help(), re.MULTILINE))


def _command_with(word: str, choices: Mapping[str, argparse.ArgumentParser]) -> str:
    """Return what was perhaps meant by an option that stands before any command."""
    takers: dict[str, list[str]] = {"--help": [], "--json": [], "--version": []}
    for name, parser in choices.items():
        for option in _options(parser) - {"--json"}:
            takers.setdefault(option, []).append(name)
    word = word.partition("=")[0]
    found = [word] if word in takers else get_close_matches(word, takers, n=1)
    if not found:
        return "`overlay --help` lists the commands"
    of_these = f" after {' or '.join(takers[found[0]])}" if takers[found[0]] else ""
    return f"did you mean {found[0]}{of_these}?"


def _give_up_output() -> None:
    """Send what is still buffered to nowhere, or the interpreter would fail on it once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser(*, suite: bool, prove: bool = False) -> argparse.ArgumentParser:
    """Return the parser. What only `overlay suite` and `overlay prove` need is imported for them alone."""
    parser = argparse.ArgumentParser(
        prog="overlay",
        description="Patches for known defects in an installed Megatron-Core, slime, miles or verl.",
        epilog="Exit codes: 0 all is well; 1 a selected patch cannot be applied, or (audit) a defect is "
        "not patched; 2 wrong usage or setting, or unwritable output. More: docs/settings.md.",
    )
    parser.add_argument("--version", action="version", version=f"overlay {__version__}")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    choices = parser.add_subparsers(metavar="COMMAND", description="without a command: a one-screen summary")
    parser.set_defaults(command=_cockpit, parser=parser, choices=choices.choices)

    def add(name: str, command: Callable[..., int], text: str) -> argparse.ArgumentParser:
        sub = choices.add_parser(name, help=text, description=text, allow_abbrev=False)
        what = "print JSON instead of a table"
        sub.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=what)
        sub.set_defaults(command=command, parser=sub)
        return sub

    run.add(choices)
    for one in (commands, lock, new):
        one.add(add)
    text = "run upstream's own tests with and without overlay (list, run)"
    tests = choices.add_parser("suite", help=text, description=text)
    if suite:
        from overlay.desk.suite.commands import add_arguments

        add_arguments(tests)
    text = "run each patch's contract on what is installed here, without and with the patch"
    proof = add("prove", lambda *_: EXIT_USAGE, text)
    if prove:
        from overlay.desk.prove.command import add_arguments as add_proof

        add_proof(proof)
    add("schema", _schema, "print the JSON schema of what the commands print with --json")
    text = "show which patches a job's ranks had; -o writes that, or an audit, as an HTML page"
    report = add("report", _report, text)
    what = "the folder of a job's ledgers (OVERLAY_LEDGER_DIR): without -o, what is in it is printed"
    report.add_argument("job", nargs="?", metavar="DIR", help=what)
    report.add_argument("-o", "--output", metavar="FILE", help="the page, such as report.html")
    what = "an installation, unpacked wheel or checkout; repeatable (default without a job: this one)"
    report.add_argument("--audit", action="append", default=[], type=folder, metavar="DIR", help=what)
    return parser


def _cockpit(engine: Engine, arguments: argparse.Namespace) -> int:
    """Show what is here. What is selected and cannot be applied is exit code 1, as everywhere."""
    from overlay.desk.screen import look, screen

    found = look(engine)
    output.show(arguments, found.to_dict(), lambda: screen(found))
    return EXIT_LOUD if found.refused else EXIT_OK


def _schema(_: Engine, arguments: argparse.Namespace) -> int:
    from overlay.desk.schema import schema

    found = schema()
    output.show(arguments, found, lambda: json.dumps(found, indent=2))
    return EXIT_OK


def _report(engine: Engine, arguments: argparse.Namespace) -> int:
    from overlay.desk.report import command

    return command.write(engine, arguments)
