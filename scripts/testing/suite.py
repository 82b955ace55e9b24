"""Run the linters, the type checker and the test suite; scripts/test starts this in its environment.

Without arguments everything runs, even after a failure, so that one run shows all there is to mend. With
arguments pytest runs alone and gets them; `--lint` runs all but pytest. The whole suite runs on workers, each
test file on one of them, and types are checked beside it. pytest's closing line is the last line of
output, and just before it stand what the type checker found, the skipped tests, counted by reason, and the
checks that failed.

`--nightly` adds what takes minutes: the quick files of upstream's own suites, plain and under overlay, and
the tests that are left out by day as repetitions (`tests/shared/upstreams/repetitions.py`). Each program
starts cold then; by day they start on a server that has imported what they begin with
(`tests/shared/warm_server.py`).
`--quick` runs the tests that catch most slips in the least time, and needs no source but this checkout
(`scripts/torture own` says what they miss).
"""

from __future__ import annotations

import collections
import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest
import warm_server

# Before pytest puts `tests` on the path, where a folder without modules has the same name.
from overlay.compat.ranks import warm
from sources import fetch_release

ROOT = Path(__file__).resolve().parents[2]
TYPED = Path(".cache") / "typed"
#: The whole suite on a worker more than two processors: tests of real ranks take both of them while they
#: compute, and others wait for clusters and processes meanwhile. On two processors it took 12 minutes
#: where two workers took 13.5. By file, as what a release was found to do is found once in a file.
WORKERS = ["--numprocesses", str(min(3, 1 + (os.cpu_count() or 1))), "--dist", "loadfile"]
#: Folders of tests whose files take minutes: what computes, and what waits for clusters and processes.
#: They come first, as a long file that is begun last leaves the other workers idle, and in turns, so that
#: one worker computes while another waits. (xdist would begin with the files that have most tests, which
#: are short ones.)
COMPUTES, WAITS = ("real", "distributed"), ("workers", "torture", "scripts", "compat")
#: What the reason begins with of a test that repeats another one (`tests/shared/upstreams/repetitions.py`).
LEFT = "left to the nightly run"
#: What `--quick` gives pytest besides that: tests that need nothing but `.venv`, as they were measured.
QUICK = [
    *("-m", "quick or not (real or distributed)"),
    *("tests/overlay", "tests/patches", "tests/compat"),
    # These start processes by the dozen, or a browser, for commands that no trainer runs.
    *(
        "--ignore=tests/overlay/desk",
        "--ignore=tests/overlay/desk/prove",
        "--ignore=tests/overlay/desk/suite",
    ),
    "--ignore=tests/overlay/desk/report/test_report_browser.py",
    # These compile.
    *("tests/distributed/test_dynamic_cp.py", "tests/real/test_dynamic_cp_known_losses.py"),
]


def whole_run() -> list[str]:
    """Return the arguments with which pytest runs all tests."""
    return [*WORKERS, "--no-loadscope-reorder", "--durations=20", *in_order(ROOT / "tests")]


def in_order(tests: Path) -> list[str]:
    """Return the files of long tests, and all else in the folder of tests that holds some."""
    long = [
        [
            str(path.relative_to(tests))
            for folder in folders
            for path in sorted((tests / folder).rglob("test_*.py"))
        ]
        for folders in (COMPUTES, WAITS)
    ]
    in_turns = sorted((index / len(files), file) for files in long for index, file in enumerate(files))
    found = [path.name for path in tests.iterdir() if any(path.rglob("test_*.py")) or path.match("test_*.py")]
    short = sorted(name for name in found if name not in COMPUTES + WAITS)
    return [f"tests/{name}" for name in (*(file for _, file in in_turns), *short)]


def typed_tree(root: Path) -> Path:
    """Lay out the packages as they are imported, and return the folder that holds `overlay`.

    The folders `patches/` and `compat/` are imported as `overlay.patches` and `overlay.compat`. setuptools
    knows, mypy and import-linter cannot be told, so they get a tree of links. The same goes for the modules
    that tests share: pytest puts the folder of each test on the path.
    """
    package = root / TYPED / "overlay"
    package.mkdir(parents=True, exist_ok=True)
    for old in [*package.iterdir(), *package.parent.iterdir()]:
        if old.is_symlink():
            old.unlink()
    for path in (root / "tests").rglob("*.py"):
        shared = path.parent if path.name == "__init__.py" else path
        link = package.parent / shared.name
        inside = shared is path and (path.parent / "__init__.py").exists()
        if not path.name.startswith(("test_", "conftest")) and not inside and not link.is_symlink():
            link.symlink_to(shared)
    wanted = [path for path in (root / "overlay").iterdir() if path.name != "__pycache__"]
    for path in [*wanted, root / "patches", root / "compat"]:
        (package / path.name).symlink_to(path)
    return package.parent


def mypy(root: Path, typed: Path) -> tuple[int, str]:
    """Type-check everything; return the status, and the findings by the files' names in the checkout."""
    command = [sys.executable, "-m", "mypy", str(TYPED / "overlay"), "scripts", "tests"]
    env = {**os.environ, "MYPYPATH": os.pathsep.join(map(str, [typed, root / "scripts", root]))}
    done = subprocess.run(command, cwd=root, env=env, stdout=subprocess.PIPE, text=True, check=False)
    # A module that tests share is found by its link and by its own name, and what is found is the same.
    found = dict.fromkeys(_named(line, root) for line in done.stdout.splitlines(keepends=True))
    return done.returncode, "".join(found)


def _named(line: str, root: Path) -> str:
    """Return a finding of mypy with the name that the file has in the checkout."""
    path, colon, rest = line.partition(":")
    if not path.startswith(f"{TYPED}{os.sep}"):
        return line
    return f"{(root / path).resolve().relative_to(root)}{colon}{rest}"


def ruff(root: Path, *arguments: str) -> int:
    """Run one of ruff's commands on the checkout."""
    return subprocess.run([sys.executable, "-m", "ruff", *arguments], cwd=root, check=False).returncode


@contextlib.contextmanager
def by_day() -> Generator[None]:
    """Leave repetitions to the nightly run, and start the programs of all workers on one warm server."""
    with warm_server.server() as socket:
        compiled = str(fetch_release.CACHE.resolve())
        # For as long as the server is there: a test runs all of this, and other tests come after it.
        told = {"TESTS_ONCE": "1", warm.VARIABLE: socket, "WARM_COMPILED": compiled}
        with mock.patch.dict(os.environ, told):
            yield


def imports(root: Path, typed: Path) -> int:
    """Hold the imports of the packages to the contracts of `[tool.importlinter]`."""
    # Of this environment, and from the links before what is installed.
    code = "import sys; sys.path[0] = ''; from importlinter.cli import lint_imports_command as c; c()"
    command = [
        sys.executable,
        "-c",
        code,
        "--config",
        str(root / "pyproject.toml"),
        "--no-cache",
        "--no-logo",
    ]
    done = subprocess.run(command, cwd=typed, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        print(done.stdout)
    return done.returncode


def suites(root: Path) -> int:
    """Run the quick files of upstream's own suites, those whose files can be had."""
    results = root / ".cache" / "suite-results"
    shutil.rmtree(results, ignore_errors=True)
    command = [sys.executable, "-m", "overlay", "suite", "run", "all", "--quick", "--out", str(results)]
    return subprocess.run(command, cwd=root, check=False).returncode


class Closing:
    """A pytest plugin that prints, just before the closing line, what that line may leave out."""

    def __init__(self, failed: list[str], types: Future[tuple[int, str]] | None = None) -> None:
        """Remember the checks that failed before pytest, and the one that runs beside it."""
        self.failed = failed
        self._types = types

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None]:
        """Print how many tests were skipped, also none, and the failed checks, after all other summaries.

        By reason and not by test, as pytest does: hundreds of lines would push what failed out of sight.
        """
        yield
        self.finish()
        # Of a skipped test: the file, the line, and the reason.
        said = [str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", [])]
        skipped = [reason for reason in said if LEFT not in reason]
        terminalreporter.write_line(f"{LEFT}: {len(said) - len(skipped)}")
        terminalreporter.write_line(f"skipped tests: {len(skipped)}")
        reasons = collections.Counter(skipped)
        for reason, count in reasons.most_common():
            terminalreporter.write_line(f"  {count}: {reason.removeprefix('Skipped: ')}")
        if self.failed:
            terminalreporter.write_line(f"failed besides the tests: {', '.join(self.failed)}", red=True)

    def finish(self) -> None:
        """Wait for the type checker, and print once what it found."""
        types, self._types = self._types, None
        if types is not None:
            status, found = types.result()
            print(f"--- mypy\n{found}", end="", flush=True)
            if status:
                self.failed.append("mypy")


def main(arguments: list[str]) -> int:
    """Run the checks and return the exit status: pytest's own, or 1 if only something else failed."""
    os.chdir(ROOT)
    if arguments[:1] == ["--quick"]:
        os.environ["TESTS_ONCE"] = "1"
        arguments = [*WORKERS, *QUICK, *arguments[1:]]
    nightly, lint = arguments == ["--nightly"], arguments == ["--lint"]
    if arguments and not nightly and not lint:
        return int(pytest.main(arguments, plugins=[Closing([])]))
    # The type checker has use for one processor, and tests of ranks leave one of two idle while they wait.
    typed = typed_tree(ROOT)
    with ThreadPoolExecutor(1) as beside:
        closing = Closing([], beside.submit(mypy, ROOT, typed))
        checks: dict[str, Callable[[], int]] = {
            "ruff check": lambda: ruff(ROOT, "check"),
            "ruff format": lambda: ruff(ROOT, "format", "--check"),
            "import-linter": lambda: imports(ROOT, typed),
            **({"upstream's suites": lambda: suites(ROOT)} if nightly else {}),
        }
        for name, check in checks.items():
            print(f"--- {name}", flush=True)
            if check():
                closing.failed.append(name)
        status = 0
        if not lint:
            print("--- pytest", flush=True)
            with contextlib.nullcontext() if nightly else by_day():
                status = int(pytest.main(whole_run(), plugins=[closing]))
        # Should pytest have ended before its summary.
        closing.finish()
    if lint:
        print(f"failed: {', '.join(closing.failed)}" if closing.failed else "nothing was found")
    return status or bool(closing.failed)
