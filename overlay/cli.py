"""The command line: `overlay` and `python -m overlay`.

Exit codes: 0 all is well; 1 a patch that was asked for has a loud verdict (unsupported, conflict, expired)
or failed, a site that was asked for does not exist, a lock differs, no start-up file is active, or a test of
an upstream is lost; 2 the command, a setting, a folder, a lock, a recipe or a report's input cannot be
understood, a folder holds no upstream, or the output cannot be written.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys

from overlay._version import __version__
from overlay.commands import authoring, jobs, tables
from overlay.commands.progress import Progress
from overlay.enabling.engine import Engine
from overlay.errors import LockError, OverlayError, ReportError, SelectionError, SuiteError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from overlay.verdict import Plan

EXIT_OK = 0
EXIT_LOUD = 1
EXIT_USAGE = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = _parser(suite="suite" in (sys.argv[1:] if argv is None else argv)[:1])
    try:
        return _run(parser.parse_args(argv))
    except (SelectionError, LockError, ReportError, SuiteError, _FolderError) as error:
        print(f"overlay: {error}", file=sys.stderr)
        return EXIT_USAGE
    except OverlayError as error:
        print(f"overlay: {error}", file=sys.stderr)
        return EXIT_LOUD
    except BrokenPipeError:  # `overlay list | head`
        _give_up_output()
        return EXIT_OK
    except _OutputError as error:
        _give_up_output()
        print(f"overlay: the output cannot be written: {error}", file=sys.stderr)
        return EXIT_USAGE


def _run(arguments: argparse.Namespace) -> int:
    """Run a command, and take its progress away before anybody says how it ended."""
    command: Callable[[Engine, argparse.Namespace], int] = arguments.command
    arguments.progress = Progress(sys.stderr)
    try:
        return command(Engine(progress=arguments.progress), arguments)
    finally:
        arguments.progress.close()


class _OutputError(Exception):
    """Standard output takes no more."""


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

    add("list", _list, "list the patches that come with overlay")
    explain = add("explain", _explain, "say all about one patch, and what is decided for it here")
    explain.add_argument("id", metavar="ID")
    plan = add("plan", _plan, "decide on the selected patches without importing anything")
    audit = add(
        "audit", _plan, "decide on all patches without importing anything, with the sites that decided"
    )
    status = add("status", _status, "enable overlay in a fresh process, and show what is armed")
    digest = add("digest", _digest, "print the digest of a site's source (module:qualname)")
    digest.add_argument("sites", metavar="SITE", nargs="+")
    for sub in (explain, plan, audit, digest):
        what = "look in this folder (or wheel) only, and where its editable installs lead; repeatable"
        sub.add_argument("--site", action="append", type=_folder, metavar="DIR", help=what)
        what = "the folder that is / to what lies in the sites, as for an unpacked image"
        sub.add_argument("--root", type=_folder, metavar="DIR", help=what)
    for sub in (plan, audit, status):
        default = "all, whatever OVERLAY_PATCHES says" if sub is audit else "OVERLAY_PATCHES, or all"
        sub.add_argument("--patches", metavar="SELECTION", help=f"what to select (default: {default})")
    audit.set_defaults(all=True)
    plan.set_defaults(all=False)
    jobs.add(commands, add, _print)
    authoring.add(add, _folder, _print)
    text = "run upstream's own tests with and without overlay: list, run, diff, report"
    tests = commands.add_parser("suite", help=text, description=text)
    if suite:
        from overlay.suite.commands import add_arguments

        add_arguments(tests, _print)
    _add_report(commands)
    return parser


def _add_report(commands: Any) -> None:
    text = "write one HTML page about installations, the ranks of a job, test results and figures"
    report = commands.add_parser("report", help=text, description=text)
    report.add_argument("-o", "--output", required=True, metavar="FILE", help="the page, such as report.html")
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
        type=_folder,
        metavar="DIR",
        help="an installation, unpacked wheel or checkout; repeatable (default without --ledger: this one)",
    )
    report.set_defaults(command=_report)


def _folder(text: str) -> str:
    from overlay.reading.locate import importable

    if importable(text):
        return text
    what = "is neither a folder nor an archive to import from" if os.path.exists(text) else "does not exist"
    # Not as the parser would say it, which prints all options of the command first.
    raise _FolderError(f"{text!r} {what}: name a site-packages, a checkout, an unpacked wheel, or a wheel")


class _FolderError(OverlayError):
    """A folder on the command line that is none."""


def _list(engine: Engine, arguments: argparse.Namespace) -> int:
    patches = sorted(engine.known().values(), key=lambda patch: patch.id)
    _print(arguments, [patch.to_dict() for patch in patches], lambda: tables.patches(patches))
    return EXIT_OK


def _explain(engine: Engine, arguments: argparse.Namespace) -> int:
    known = engine.known()
    if arguments.id not in known:
        from overlay.base.settings import nearest

        msg = f"there is no patch {arguments.id!r}; {nearest(arguments.id, sorted(known))}"
        raise SelectionError(msg)
    patch = known[arguments.id]
    wanted = [patch.id, *patch.requires]
    verdict = next(
        v for v in engine.plan(wanted, arguments.site, arguments.root).verdicts if v.patch == patch.id
    )
    _print(
        arguments,
        {"patch": patch.to_dict(), "verdict": verdict.to_dict()},
        lambda: tables.explanation(patch, verdict),
    )
    return EXIT_LOUD if verdict.loud else EXIT_OK


def _plan(engine: Engine, arguments: argparse.Namespace) -> int:
    from overlay.reading.source import InstalledTree

    patches = "all" if arguments.patches is None and arguments.all else arguments.patches
    tree = InstalledTree(arguments.site, arguments.root)
    plan = engine.plan(patches, tree)
    _print(arguments, plan.to_dict(), lambda: tables.plan(plan, findings=arguments.all))
    for sentence in tree.remarks(_markers(engine, plan)):
        print(f"overlay: {sentence}", file=sys.stderr)
    selected = {one.verdict for one in plan.verdicts} - {"not-selected"}
    if arguments.site and selected == {"not-installed"}:
        where = ", ".join(arguments.site)
        print(
            f"overlay: no upstream of a selected patch is in {where}: name the folders of the path, such as "
            "the site-packages and each checkout",
            file=sys.stderr,
        )
        return EXIT_USAGE
    for verdict in plan.lost:
        lost = f"nobody named it: without it, {engine.known()[verdict.patch].without}"
        print(f"overlay: {verdict.patch} cannot be applied, which stops nothing, as {lost}", file=sys.stderr)
    return EXIT_LOUD if plan.loud else EXIT_OK


def _markers(engine: Engine, plan: Plan) -> set[str]:
    """Return a module of each project that a plan is about."""
    patches = [engine.known()[name] for name in plan.selection]
    return {target.project.marker for patch in patches for target in patch.targets}


def _status(engine: Engine, arguments: argparse.Namespace) -> int:
    status = engine.enable(arguments.patches)
    engine.disable()
    _print(arguments, status.to_dict(), lambda: tables.status(status))
    loud = any(
        patch.state in ("failed", "incomplete") or (patch.verdict is not None and patch.verdict.loud)
        for patch in status.patches
        if patch.patch not in status.companions
    )
    return EXIT_LOUD if loud else EXIT_OK


def _report(engine: Engine, arguments: argparse.Namespace) -> int:
    from overlay.report import command

    return command.write(engine, arguments)


def _digest(_: Engine, arguments: argparse.Namespace) -> int:
    from overlay.reading.source import InstalledTree

    tree = InstalledTree(arguments.site, arguments.root)
    digests = {site: tree.digest(site) for site in arguments.sites}
    _print(
        arguments, digests, lambda: "\n".join(f"{found or '-':<14}{site}" for site, found in digests.items())
    )
    for site in (site for site, found in digests.items() if found is None):
        where = f"in {', '.join(arguments.site)}" if arguments.site else "in this environment"
        print(f"overlay: there is no {site} {where}", file=sys.stderr)
    return EXIT_OK if all(digests.values()) else EXIT_LOUD


def _print(arguments: argparse.Namespace, data: Any, table: Callable[[], str]) -> None:
    text = json.dumps(data, indent=2) if arguments.json else table()
    arguments.progress.close()
    try:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # a path need not be printable here
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _OutputError(error) from error
