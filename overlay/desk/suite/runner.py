"""Runs a recipe: each test file in processes of its own, first plain and then under overlay.

What the processes of a test file leave (see `plugin`) and print goes into the folder `MODE/ATTEMPT/FILE`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Sequence
from glob import glob
from typing import Any

from overlay._version import __version__
from overlay.desk.output import EXIT_LOUD, EXIT_OK, adder, say, show
from overlay.desk.processes import Commands
from overlay.desk.suite import recipe as recipes
from overlay.desk.suite import report
from overlay.desk.suite.plugin import PLUGIN, VARIABLE
from overlay.desk.suite.recipe import Recipe
from overlay.errors import SuiteError
from overlay.runtime.engine import Engine

MODES = ("plain", "overlay")


class Run:
    """One run of one recipe, in a folder that it makes."""

    def __init__(self, recipe: Recipe, folder: str, options: argparse.Namespace) -> None:
        """Make a run with the options of `overlay suite run`."""
        self._recipe, self._folder, self._options = recipe, folder, options
        self._commands = Commands(options.jobs)

    def execute(self) -> dict[str, Any]:
        """Run everything, and return what `overlay suite run --json` says of it.

        Raises:
            SuiteError: The folder is there, the tests cannot be fetched, none passes plain, or overlay was on
                in the plain run, or off in the other.

        """
        try:
            os.makedirs(self._folder)
        except OSError as error:
            what = f"{self._folder}: {error.strerror}; remove it, or choose another --out"
            raise SuiteError(what) from error
        try:
            return self._execute()
        finally:
            shutil.rmtree(os.path.join(self._folder, "work"), ignore_errors=True)
            with contextlib.suppress(OSError):
                os.rmdir(self._folder)  # nothing was run

    def _execute(self) -> dict[str, Any]:
        recipe, options, began = self._recipe, self._options, time.time()
        tree, other = (os.path.join(self._folder, "work", mode) for mode in MODES)
        tests = code = recipes.fetch(recipe.tests, tree)
        if options.installed or recipe.code:
            for name in recipe.packages:
                shutil.rmtree(os.path.join(tree, name), ignore_errors=True)
            # Into the same folder: tests also look for the files of what they test.
            code = "installed" if options.installed else recipes.fetch(recipe.code, tree)
        shutil.copytree(tree, other, symlinks=True)  # one for each mode: tests write beside themselves

        found = _expand(tree, recipe.include)
        groups = [(name, reason) for reason, files in recipe.exclude.items() for name in _expand(tree, files)]
        excluded = {name: reason for name, reason in reversed(groups) if name in found}
        wanted = _expand(tree, recipe.quick) if options.quick else found
        parts = options.only or [""]
        files = [name for name in wanted if name not in excluded and any(part in name for part in parts)]
        if not files:
            raise SuiteError(f"there is no file to run in {tests}")

        plain, overlay = (os.path.join(self._folder, mode) for mode in MODES)
        self._run("plain", 1, files)
        results = report.read(plain)
        if not any(outcome == "passed" for attempts in results.values() for outcome, _ in attempts):
            reason = next(iter(results.values()))[0][1]
            raise SuiteError(f"no test passes without overlay, so none can be lost; the first says: {reason}")
        self._run("overlay", 1, files)
        difference = report.changed_outcomes(results, report.read(overlay))
        # What differs is run again in both modes, to tell what is flaky.
        differs = [change["id"] for kind in ("lost", "won", "changed") for change in difference[kind]]
        if suspects := sorted({name.partition("::")[0] for name in differs} & {*files}):
            for mode in MODES:
                self._run(mode, 2, suspects)
            difference = report.changed_outcomes(report.read(plain), report.read(overlay))

        return {
            "recipe": recipe.name,
            "tests": tests,
            "code": dict.fromkeys(recipe.packages, code),
            "quick": options.quick,
            "files": files,
            "excluded": excluded,
            "python": platform.python_version(),
            "overlay": __version__,
            "seconds": round(time.time() - began),
            "difference": difference,
            "coverage": report.coverage(os.path.join(overlay, "1")),
        }

    def _run(self, mode: str, attempt: int, files: Sequence[str]) -> None:
        done = self._commands.each(lambda file: self._run_file(mode, attempt, file), files)
        for number, said in enumerate(done, 1):
            say(f"[{number}/{len(files)}] {mode} {said}")

    def _run_file(self, mode: str, attempt: int, file: str) -> str:
        """Run a test file until it ends or its time is over, and return what became of it as text."""
        recipe, tree = self._recipe, os.path.join(self._folder, "work", mode)
        place = os.path.join(self._folder, mode, str(attempt), file)
        os.makedirs(place)
        given = {recipes.PYTHON: sys.executable, recipes.RANKS: str(recipe.ranks)}
        words = [given.get(word, word) for word in recipe.command]
        words += [file, f"--rootdir={tree}", "-p", "no:cacheprovider", "-p", PLUGIN, *recipe.arguments]
        # Variables of pytest go: by them, the plugin recognises a pytest that a test has started.
        foreign = ("PYTEST_", VARIABLE, *(["OVERLAY"] if mode == "plain" else []))
        kept = {name: text for name, text in os.environ.items() if not name.startswith(foreign)}
        environ = {
            VARIABLE: f"{mode}:{place}",  # first: it marks the run
            **kept,
            **recipe.variables,
            "PYTHONPATH": os.pathsep.join(filter(None, (tree, kept.get("PYTHONPATH")))),
            # The ids of cases that are made from a set must be those of the other run.
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_PLUGINS": PLUGIN,
            **({"OVERLAY": "1"} if mode == "overlay" else {}),
        }
        log, began = os.path.join(place, "output.txt"), time.monotonic()
        with open(log, "wb") as output:
            status = self._commands.run(words, environ, output, recipe.time_limit, tree)

        if any(one["enabled"] != (mode == "overlay") for one in report.ledgers(place)):
            what = "on in the plain run" if mode == "plain" else "off under overlay"
            raise SuiteError(f"overlay was {what} in a process of {file}: the two runs cannot be compared")
        with open(log, encoding="utf-8", errors="replace") as output:
            last = ([line.strip() for line in output if line.strip()] or ["no output"])[-1]
        ended = None
        if status is None:
            ended = "hung", f"no end within {recipe.time_limit} s: {last}"
        elif status not in range(6) or len(glob("*.ended", root_dir=place)) < recipe.ranks:
            ended = "crashed", f"exit status {status}: {last}"
        if ended:
            with open(os.path.join(place, "run.part"), "w", encoding="utf-8") as written:
                json.dump([file, *ended], written)
        became = [outcome for outcome, _ in report.outcomes(place).values()]
        counts = ", ".join(f"{became.count(kind)} {kind}" for kind in report.TEST_OUTCOMES if kind in became)
        return f"{file}: {counts or 'no test'} ({time.monotonic() - began:.0f} s)"


def _expand(tree: str, patterns: Sequence[str]) -> list[str]:
    """Return the files that match a pattern, sorted. `**` stands for any folders, `*` for part of a name."""
    found = {name for pattern in patterns for name in glob(pattern, root_dir=tree, recursive=True)}
    return sorted(name for name in found if os.path.isfile(os.path.join(tree, name)))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the commands to the parser of `overlay suite`."""
    add = adder(parser.add_subparsers(metavar="COMMAND", required=True))
    add("list", _list, "list the recipes that come with overlay")
    run = add("run", _run, "run the tests of recipes plain and under overlay; exit code 1 if any is lost")
    run.add_argument("names", nargs="*", metavar="NAME", help="a recipe, a file *.toml, or all")
    run.add_argument("--quick", action="store_true", help="only the files that a recipe marks as quick")
    what = "only files with this in the path"
    run.add_argument("--only", action="append", default=[], metavar="TEXT", help=what)
    what = "test what is installed, not what the recipe fetches"
    run.add_argument("--installed", action="store_true", help=what)
    run.add_argument("-j", "--jobs", type=int, default=2, help="files at once (default: 2)")
    what = "where results go (default: %(default)s)"
    run.add_argument("--out", default="suite-results", metavar="DIR", help=what)


def _list(_: Engine, arguments: argparse.Namespace) -> int:
    found = [recipes.find(name) for name in recipes.shipped()]
    text = "\n".join(f"{one.name:<24}{one.about}" for one in found)
    show(arguments, [one.to_dict() for one in found], lambda: text)
    return EXIT_OK


def _run(engine: Engine, arguments: argparse.Namespace) -> int:
    """Run recipes one after the other. Of all, one that cannot be fetched is skipped."""
    if arguments.jobs < 1:
        raise SuiteError(f"--jobs must be at least 1, got {arguments.jobs}")
    if not arguments.names:
        raise SuiteError(f"name a recipe, or all; there are: {', '.join(recipes.shipped())}")
    every = arguments.names == ["all"]
    engine.chosen()  # an unknown patch is an error now, not after the plain run
    runs, not_run = [], []
    for one in [recipes.find(name) for name in (recipes.shipped() if every else arguments.names)]:
        if arguments.quick and not one.quick:
            not_run.append(f"{one.name}: not run: it has no quick files")
            continue
        folder = os.path.join(os.path.abspath(arguments.out), one.name)
        try:
            runs.append(Run(one, folder, arguments).execute())
        except KeyboardInterrupt as error:
            raise SuiteError(
                f"{one.name}: stopped, with all that it had started; what ended is in {folder}"
            ) from error
        except SuiteError as error:
            if not every or not isinstance(error, recipes.UnavailableError):
                raise SuiteError(f"{one.name}: {error}") from error
            not_run.append(f"{one.name}: not run: {error}")
    said = {"runs": runs, "not_run": not_run}
    show(arguments, said, lambda: "\n".join([*map(report.section, runs), *not_run]))
    return EXIT_LOUD if any(run["difference"]["lost"] for run in runs) else EXIT_OK
