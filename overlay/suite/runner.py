"""Runs a recipe: each test file in processes of its own, first plain and then under overlay."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from overlay.base.record import TYPE_CHECKING, Record
from overlay.errors import SuiteError
from overlay.suite import results, source
from overlay.suite.compare import compare
from overlay.suite.processes import Command, Commands
from overlay.suite.progress import Progress
from overlay.suite.recipe import PYTHON, RANKS
from overlay.suite.results import PLUGIN, VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from overlay.suite.compare import Difference
    from overlay.suite.recipe import Recipe
    from overlay.suite.results import Results

MODES = ("plain", "overlay")

#: How often files whose outcome differs are run again in each mode, to tell the flaky ones.
RERUNS = 1


class Options(Record):
    """How to run, as the command line says."""

    out: str
    cache: str
    python: str = sys.executable
    jobs: int = 2
    quick: bool = False
    installed: bool = False
    #: Only files whose path has one of these in it; empty for all.
    only: tuple[str, ...] = ()


class Run:
    """One run of one recipe."""

    def __init__(self, recipe: Recipe, options: Options) -> None:
        self.recipe = recipe
        self.options = options
        self.folder = os.path.join(options.out, recipe.name)
        self._commands = Commands()
        self._tests = source.obtain(recipe.tests, options.cache)
        self._code = source.obtain(recipe.code, options.cache) if recipe.code else self._tests
        tree = self._tests.folder
        found = source.expand(tree, recipe.include)
        self._left_out = source.excluded(tree, found, recipe.exclude)
        self._whole = len(found) - len(self._left_out)
        wanted = source.expand(tree, recipe.quick) if options.quick else found
        self.files = [name for name in wanted if name not in self._left_out]
        if options.only:
            self.files = [name for name in self.files if any(part in name for part in options.only)]
        if not self.files:
            raise SuiteError(f"there is no file to run in {self._tests.origin}")

    def execute(self) -> tuple[Difference, dict[str, Any]]:
        """Run everything, write the results, and return the difference and what `run.json` says.

        Raises:
            SuiteError: the interpreter cannot be asked, or has none of the packages, or another run writes
                into the same folder.
        """
        with _alone(self.folder):
            return self._execute()

    def _execute(self) -> tuple[Difference, dict[str, Any]]:
        began = time.time()
        earlier = _durations(self.folder)
        self._prepare()
        about = self._probe()
        progress = Progress(self.recipe, self.files, self._whole, self.options.jobs, earlier)
        found: dict[str, Results] = {}
        try:
            for mode in MODES:
                found[mode] = self._all(mode, self.files, 1, about, progress)
            suspects = _files_of(compare(found["plain"], found["overlay"]))
            for attempt in range(2, 2 + RERUNS if suspects else 2):
                progress.more(suspects)
                for mode in MODES:
                    again = self._all(mode, suspects, attempt, about, progress)
                    found[mode] = results.join((found[mode], again))
        finally:
            shutil.rmtree(os.path.join(self.folder, "work"), ignore_errors=True)
        for mode, result in found.items():
            results.write(result, os.path.join(self.folder, mode, results.NAME))
            results.write_junit(result, os.path.join(self.folder, mode, "junit.xml"), mode)
        said = {**self._record(about), "began": began, "seconds": round(time.time() - began)}
        with open(os.path.join(self.folder, "run.json"), "w", encoding="utf-8") as file:
            json.dump(said, file, indent=1)
        return compare(found["plain"], found["overlay"], self.recipe.known), said

    def _record(self, about: dict[str, Any]) -> dict[str, Any]:
        kept = {key: value for key, value in about.items() if key != "packages"}
        origin = "installed" if self.options.installed else self._code.origin
        return {
            "format": results.FORMAT,
            "recipe": self.recipe.name,
            "about": self.recipe.about,
            "tests": self._tests.origin,
            "code": dict.fromkeys(about["packages"], origin),
            "command": [*self.recipe.command, *self.recipe.arguments],
            "ranks": self.recipe.ranks,
            "jobs": self.options.jobs,
            "time_limit": self.recipe.time_limit,
            "quick": self.options.quick,
            "only": list(self.options.only),
            "files": self.files,
            "excluded": self._left_out,
            "known": [item.to_dict() for item in self.recipe.known],
            **kept,
        }

    def _prepare(self) -> None:
        """Make the folders, and a copy of the tests for each mode: tests write beside themselves."""
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(self.folder, "run.json"))  # it would speak for what is half written
        for name in (*MODES, "work"):
            shutil.rmtree(os.path.join(self.folder, name), ignore_errors=True)
        for mode in MODES:
            os.makedirs(os.path.join(self.folder, mode, "logs"))
            leave = self.recipe.packages if self.options.installed or self.recipe.code else ()
            tree = self._tree(mode)
            shutil.copytree(
                self._tests.folder, tree, ignore=_without(self._tests.folder, leave), symlinks=True
            )
            if self.recipe.code and not self.options.installed:
                # Into the same folder: tests also look for the files of what they test.
                shutil.copytree(self._code.folder, tree, symlinks=True, dirs_exist_ok=True)

    def _tree(self, mode: str) -> str:
        return os.path.join(os.path.abspath(self.folder), "work", mode)

    def _environ(self, mode: str) -> dict[str, str]:
        # By its variables the plugin knows a pytest that a test has started.
        foreign = ("PYTEST_", "OVERLAY") if mode == "plain" else ("PYTEST_",)
        kept = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
        if mode == "overlay":
            kept["OVERLAY"] = "1"
        path = [self._tree(mode)]
        if "PYTHONPATH" in kept:
            path.append(kept["PYTHONPATH"])
        return {
            **kept,
            **self.recipe.variables,
            "PYTHONPATH": os.pathsep.join(path),
            # The ids of cases that are made from a set must be those of the other run.
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def _probe(self) -> dict[str, Any]:
        words = [self.options.python, "-m", "overlay.suite.probe"]
        words += [json.dumps(self.recipe.packages), json.dumps(self.recipe.environment)]
        environ = {**self._environ("overlay"), "OVERLAY": "0"}
        done = subprocess.run(
            words,
            cwd=self._tree("plain"),
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        if done.returncode:
            said = done.stderr.strip().rpartition("\n")[2]
            raise SuiteError(f"{self.options.python} cannot run overlay: {said}")
        about: dict[str, Any] = json.loads(done.stdout)
        lacking = [name for name, place in about["packages"].items() if not place]
        if lacking:
            raise SuiteError(f"{self.options.python} has no {', '.join(lacking)} to be tested")
        return about

    def _all(
        self, mode: str, files: Sequence[str], attempt: int, about: dict[str, Any], progress: Progress
    ) -> Results:
        def one(number: int) -> Results:
            result = self._one(mode, files[number], number, attempt, about)
            progress.done(mode, files[number], result)
            return result

        with ThreadPoolExecutor(self.options.jobs) as pool:
            try:
                return results.join(pool.map(one, range(len(files))))
            except BaseException:
                self._commands.stop()
                raise

    def _one(self, mode: str, file: str, number: int, attempt: int, about: dict[str, Any]) -> Results:
        """Run one file and return what became of it."""
        folder = os.path.join(os.path.abspath(self.folder), mode, "logs", f"{attempt}-{number:03}")
        os.makedirs(folder)
        task = os.path.join(folder, "task.json")
        sites = {name: patch["sites"] for name, patch in about["patches"].items()}
        with open(task, "w", encoding="utf-8") as written:
            json.dump({"folder": folder, "mode": mode, "sites": sites}, written)
        python, ranks = self.options.python, str(self.recipe.ranks)
        words = [word.replace(PYTHON, python).replace(RANKS, ranks) for word in self.recipe.command]
        words += [file, f"--rootdir={self._tree(mode)}", "-p", "no:cacheprovider", "-p", PLUGIN]
        words += self.recipe.arguments
        environ = {**self._environ(mode), VARIABLE: task, "PYTEST_PLUGINS": PLUGIN}
        log = os.path.join(folder, "output.txt")
        command = Command(
            words=words,
            folder=self._tree(mode),
            environ=environ,
            mark=f"{VARIABLE}={task}",
            limit=self.recipe.time_limit,
            log=log,
        )
        ended = self._commands.run(command)
        outcome = "finished" if ended.status is not None else "hung"
        if ended.status is not None and (ended.status < 0 or ended.status > _PYTEST_LAST):
            outcome = "crashed"
        record = results.File(
            file=file, attempt=attempt, outcome=outcome, seconds=round(ended.seconds, 1), status=ended.status
        )
        return self._readable(results.gather(folder, record, _last_words(log)), mode)

    def _readable(self, found: Results, mode: str) -> Results:
        """Return results whose reasons name no folder of this machine."""
        tests = []
        for test in found.tests:
            reason = test.reason
            for folder in (self._tree(mode), sys.prefix, os.path.expanduser("~")):
                reason = reason.replace(folder + os.sep, "")
            tests.append(test.replace(reason=reason))
        return found.replace(tests=tuple(tests))


#: The last exit status that pytest itself gives.
_PYTEST_LAST = 5


@contextlib.contextmanager
def _alone(folder: str) -> Iterator[None]:
    """Keep other runs out of a folder, until this one ends or its process dies.

    What lies in the folder is deleted later, so a folder of somebody else's is refused. A run marks
    its own.
    """
    os.makedirs(folder, exist_ok=True)
    mark = os.path.join(folder, ".running")
    if os.listdir(folder) and not os.path.exists(mark):
        raise SuiteError(f"{folder} is not empty, and no suite run created it: choose another --out")
    with open(mark, "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise SuiteError(
                f"another run writes into {folder}: wait for it, or take another --out"
            ) from error
        yield


def _without(top: str, names: Sequence[str]) -> Callable[[str, list[str]], list[str]]:
    """Return what tells `copytree` to leave out some names of the top folder."""
    return lambda folder, found: [name for name in found if folder == top and name in names]


def _last_words(log: str) -> str:
    """Return the last line of an output that says something."""
    with open(log, encoding="utf-8", errors="replace") as file:
        lines = [line.strip() for line in file.read()[-20_000:].splitlines()]
    errors = [line for line in lines if line.startswith("E ") or "Error: " in line]
    return ([*[line for line in lines if line], *errors] or [""])[-1][:300]


def _files_of(difference: Difference) -> list[str]:
    """Return the files of the tests whose outcome differs."""
    changes = (*difference.lost, *difference.won, *difference.changed)
    return sorted({change.id.partition("::")[0] for change in changes})


def _durations(folder: str) -> dict[str, float]:
    """Return the seconds that each file took in the run whose results lie there."""
    try:
        found = results.read(os.path.join(folder, "plain"))
    except SuiteError:
        return {}
    return {file.file: file.seconds for file in found.files}
