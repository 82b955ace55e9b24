"""`overlay suite list | run`."""

from __future__ import annotations

import os

from overlay.desk.output import EXIT_LOUD, EXIT_OK, show
from overlay.desk.suite import recipe, report, runner
from overlay.errors import SuiteError
from overlay.model.record import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from overlay.runtime.engine import Engine

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
    run.add_argument("names", nargs="*", metavar="NAME", help="a recipe, a file *.toml, or all")
    run.add_argument("--quick", action="store_true", help="only the files that a recipe marks as quick")
    what = "only files with this in the path"
    run.add_argument("--only", action="append", default=[], metavar="TEXT", help=what)
    what = "test what is installed, not what the recipe fetches"
    run.add_argument("--installed", action="store_true", help=what)
    run.add_argument("-j", "--jobs", type=int, default=2, help="files at once (default: 2)")
    run.add_argument("--out", default=OUT, metavar="DIR", help=f"where results go (default: {OUT})")


def _list(_: Engine, arguments: argparse.Namespace) -> int:
    found = [recipe.find(name) for name in recipe.shipped()]
    text = "\n".join(f"{one.name:<24}{one.about}" for one in found)
    show(arguments, [one.to_dict() for one in found], lambda: text)
    return EXIT_OK


def _run(engine: Engine, arguments: argparse.Namespace) -> int:
    """Run recipes one after the other. Of all, one that cannot be fetched is skipped."""
    if arguments.jobs < 1:
        raise SuiteError(f"--jobs must be at least 1, got {arguments.jobs}")
    if not arguments.names:
        raise SuiteError(f"name a recipe, or all; there are: {', '.join(recipe.shipped())}")
    every = arguments.names == ["all"]
    engine.chosen()  # an unknown patch is an error now, not after the plain run
    runs, not_run = [], []
    for one in [recipe.find(name) for name in (recipe.shipped() if every else arguments.names)]:
        if arguments.quick and not one.quick:
            not_run.append(f"{one.name}: not run: it has no quick files")
            continue
        folder = os.path.join(os.path.abspath(arguments.out), one.name)
        try:
            runs.append(runner.Run(one, folder, arguments).execute())
        except KeyboardInterrupt as error:
            raise SuiteError(
                f"{one.name}: stopped, with all that it had started; what ended is in {folder}"
            ) from error
        except SuiteError as error:
            if not every or not isinstance(error, recipe.UnavailableError):
                raise SuiteError(f"{one.name}: {error}") from error
            not_run.append(f"{one.name}: not run: {error}")
    said = {"runs": runs, "not_run": not_run}
    show(arguments, said, lambda: "\n".join([*map(report.section, runs), *not_run]))
    return EXIT_LOUD if any(run["difference"]["lost"] for run in runs) else EXIT_OK
