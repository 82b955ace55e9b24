"""The command line: `overlay` and `python -m overlay`. `docs/settings.md` says what the exit codes mean."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Sequence
from difflib import get_close_matches

from overlay._version import __version__
from overlay.desk import commands, lock, run
from overlay.desk.output import EXIT_LOUD, EXIT_STOPPED, EXIT_USAGE, adder, say
from overlay.desk.report import page as report
from overlay.errors import LockError, OverlayError, ReportError, SelectionError, SettingsError, SuiteError
from overlay.runtime.engine import Engine
from overlay.source.registry import check_whole

#: Of these the user can correct something, so they are exit code 2.
_USAGE = (SelectionError, LockError, ReportError, SuiteError, SettingsError)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    command: list[str] = []
    if words[:1] == ["run"]:  # what it starts has options of its own
        own, command = run.split(words[1:])
        words = ["run", *own]
    for at, word in enumerate(words):
        if words[at - 1 : at] == ["--patches"] and word[:1] == "-" and word[:2] not in ("-", "--"):
            words[at - 1 : at + 1] = [f"--patches={word}"]  # what begins with a drop would be an option else
    try:
        parser, known = _parser(words[:1])
        if words and words[0] not in known:
            raise SelectionError(_no_command(words[0], known))
        arguments = parser.parse_args(words)
        arguments.words = command
        check_whole()
        run_it: Callable[[Engine, argparse.Namespace], int] = arguments.command
        return run_it(Engine(), arguments)
    except OverlayError as error:
        say(str(error))
        return EXIT_USAGE if isinstance(error, _USAGE) else EXIT_LOUD
    except KeyboardInterrupt:  # what a command has started, it has ended
        say("stopped")
        return EXIT_STOPPED


def _no_command(word: str, known: Collection[str]) -> str:
    near = get_close_matches(word, [*known, "--patches", "--strict", "--site", "--json"], n=1)
    meant = f"{'COMMAND ' * (near[0] not in known)}{near[0]}" if near else ""
    hint = f"did you mean `overlay {meant}`?" if near else "`overlay --help` lists them"
    return f"there is no command {word!r}; {hint}"


def _parser(asked: list[str]) -> tuple[argparse.ArgumentParser, set[str]]:
    """Return the parser, and what may come first. What one command alone needs is imported for it alone."""
    parser = argparse.ArgumentParser(
        prog="overlay",
        description="Patches for known defects in an installed Megatron-Core, slime, miles or verl.",
        epilog="Exit codes: 0 all is well; 1 a selected patch cannot be applied, or (audit) a defect is "
        "not patched; 2 wrong usage or setting, or unwritable output. More: docs/settings.md.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"overlay {__version__}")
    choices = parser.add_subparsers(metavar="COMMAND", description="without a command: a one-screen summary")
    parser.set_defaults(command=_screen)
    add = adder(choices)
    run.add(choices)
    commands.add(add)
    lock.add(add)
    text = "run upstream's own tests with and without overlay (list, run)"
    tests = choices.add_parser("suite", help=text, description=text)
    if asked == ["suite"]:
        from overlay.desk.suite import runner

        runner.add_arguments(tests)
    text = "run each patch's contract on what is installed here, without and with the patch"
    proof = add("prove", _screen, text)
    if asked == ["prove"]:
        from overlay.desk.prove import prove

        prove.add_arguments(proof)
    report.add(add)
    return parser, {*choices.choices, "-h", "--help", "--version"}


def _screen(engine: Engine, _: argparse.Namespace) -> int:
    from overlay.desk.screen import show_screen

    return show_screen(engine)
