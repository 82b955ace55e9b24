"""`overlay suite list | run | diff | report`."""

from __future__ import annotations

import os
import signal
import sys
from glob import glob

from overlay.base.record import TYPE_CHECKING
from overlay.commands.output import EXIT_LOUD, EXIT_OK, show
from overlay.errors import SuiteError
from overlay.suite import compare, recipe, report, results, runner, source

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from overlay.enabling.engine import Engine


#: Where results go if nothing else is said.
OUT = "suite-results"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the commands to the parser of `overlay suite`."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, command: Callable[..., int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.add_argument("--json", action="store_true", help="print JSON instead of text")
        sub.set_defaults(command=command)
        return sub

    add("list", _list, "list the recipes that come with overlay")
    run = add("run", _run, "run the tests of recipes plain and under overlay; exit code 1 if any is lost")
    run.add_argument("names", nargs="*", metavar="NAME", help="a recipe, or a file *.toml (default: all)")
    run.add_argument("--quick", action="store_true", help="only the files that a recipe marks as quick")
    run.add_argument(
        "--only", action="append", default=[], metavar="TEXT", help="only files with this in the path"
    )
    run.add_argument(
        "--installed", action="store_true", help="test what is installed, not what the recipe fetches"
    )
    run.add_argument(
        "--python", default=sys.executable, help="interpreter of the environment (default: this one)"
    )
    run.add_argument("-j", "--jobs", type=int, default=2, help="files at once (default: 2)")
    run.add_argument("--out", default=OUT, metavar="DIR", help=f"where results go (default: {OUT})")
    run.add_argument("--cache", default=source.cache(), metavar="DIR", help="where fetched files are kept")
    diff = add("diff", _diff, "compare two runs by node id; exit code 1 if anything is lost")
    for name in ("before", "after"):
        diff.add_argument(name, metavar=name.upper(), help="a results.jsonl, or a folder that has one")
    page = add("report", _report, "print the results of runs as a page in Markdown")
    page.add_argument(
        "folders", nargs="*", metavar="DIR", help=f"folders with run.json (default: all in {OUT})"
    )


def _list(_: Engine, arguments: argparse.Namespace) -> int:
    found = [recipe.find(name) for name in recipe.shipped()]
    text = "\n".join(f"{item.name:<24}{item.about}" for item in found)
    show(arguments, [item.to_dict() for item in found], lambda: text)
    return EXIT_OK


def _run(_: Engine, arguments: argparse.Namespace) -> int:
    """Run recipes one after the other. Unless named, one that cannot be fetched is skipped."""
    arguments.progress.close()  # it says more of its own
    # What ends this process shall also end what it has started. Background jobs of a shell ignore SIGINT.
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, signal.default_int_handler)
    if arguments.jobs < 1:
        raise SuiteError(f"--jobs {arguments.jobs}: at least one file has to run at a time")
    wanted = [recipe.find(name) for name in arguments.names or recipe.shipped()]
    options = runner.Options(
        out=os.path.abspath(arguments.out),
        cache=os.path.abspath(arguments.cache),
        python=arguments.python,
        jobs=arguments.jobs,
        quick=arguments.quick,
        installed=arguments.installed,
        only=tuple(arguments.only),
    )
    data, texts, lost, missing = [], [], False, []
    for item in wanted:
        if options.quick and not item.quick:
            missing.append(f"{item.name}: not run: it has no quick files")
            continue
        try:
            difference, said = runner.Run(item, options).execute()
        except KeyboardInterrupt as error:
            raise SuiteError(f"{item.name}: stopped, with all that it had started") from error
        except SuiteError as error:
            if arguments.names:
                raise SuiteError(f"{item.name}: {error}") from error
            missing.append(f"{item.name}: not run: {error}")
            continue
        lost = lost or bool(difference.lost)
        data.append({**said, "difference": difference.to_dict()})
        never = report.untouched(os.path.join(options.out, item.name))
        texts.append(f"{item.name}: {compare.table(difference)}\n{never}")
    show(arguments, {"runs": data, "not_run": missing}, lambda: "\n".join([*texts, *missing]))
    return EXIT_LOUD if lost else EXIT_OK


def _diff(_: Engine, arguments: argparse.Namespace) -> int:
    found = compare.compare(results.read(arguments.before), results.read(arguments.after))
    show(arguments, found.to_dict(), lambda: compare.table(found))
    return EXIT_LOUD if found.lost else EXIT_OK


def _report(_: Engine, arguments: argparse.Namespace) -> int:
    folders = arguments.folders or _all_in(OUT)
    runs = [report.load(folder) for folder in folders]
    show(arguments, [run.to_dict() for run in runs], lambda: report.page(runs))
    return EXIT_OK


def _all_in(folder: str) -> Sequence[str]:
    found = sorted(glob(os.path.join(folder, "*", "run.json")))
    if not found:
        raise SuiteError(f"there are no results in {folder}: run `overlay suite run` first")
    return [os.path.dirname(path) for path in found]
