"""Say which patches have had their day: each one's removal test, on every release that the test knows.

    ./scripts/matrix retire                   # all patches
    ./scripts/matrix retire verl.sft-balance  # only these

A removal test runs on plain upstream, and passes once the patch is not needed there: on releases that have
upstream's own cure it is expected to pass, on all others to fail. Exit status: 1 if it passes where it was
expected to fail, so that the patch is ready to retire there, or fails for another reason than it is expected
to; 2 if tests cannot be collected.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from overlay.catalogue.registry import load_patches

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).resolve().parents[2]

NEEDED, CURED, READY = "still needed", "cured upstream", "ready to retire"
BROKEN, UNKNOWN = "fails otherwise", "not run"


class Verdicts:
    """A pytest plugin that keeps what removal tests say, by node id."""

    def __init__(self, patches: Iterable[str]) -> None:
        """Begin without any, of some patches."""
        self.found: dict[str, tuple[str, str]] = {}
        self._patches = set(patches)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out what a test of many patches does for others."""
        items[:] = [item for item in items if _patch_of(item) in (None, *self._patches)]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the verdict of a test: its call, or its set-up if it did not come to that."""
        if report.when == "call" or not report.passed:
            self.found.setdefault(report.nodeid, verdict(report))


def verdict(report: pytest.TestReport) -> tuple[str, str]:
    """Return what the report on a removal test means, and why where that is not plain."""
    said = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr or "")
    if report.skipped:
        return (NEEDED, "") if hasattr(report, "wasxfail") else (UNKNOWN, said.removeprefix("Skipped: "))
    if report.passed:
        return CURED, ""
    # A strict `xfail` that passes is reported as a failure.
    if said.startswith("[XPASS(strict)]"):
        return READY, ""
    return BROKEN, said.strip().rpartition("\n")[2]


def _patch_of(item: pytest.Item) -> str | None:
    """Return the patch that a test of many patches is run for."""
    called = getattr(item, "callspec", None)
    return None if called is None else called.params.get("patch")


def rows(tests: dict[str, str], found: dict[str, tuple[str, str]]) -> Iterable[tuple[str, str, str, str]]:
    """Yield patch, release, verdict and reason, for each release that a removal test ran on."""
    for patch, test in tests.items():
        mine = {
            name.partition("[")[2].removesuffix("]"): said
            for name, said in found.items()
            if name.partition("[")[0] == test
        }
        # A test of many patches names the patch before the release.
        own = {
            what.removeprefix(f"{patch}-"): said
            for what, said in mine.items()
            if what.startswith(f"{patch}-")
        }
        for release, said in (own or mine).items():
            yield patch, release or "the one of its test", *said
        if not mine:
            yield patch, "-", UNKNOWN, f"{test} was not collected"


def judged(tests: dict[str, str]) -> list[tuple[str, str, str, str]] | None:
    """Run removal tests, given by patch, and return their rows; `None` if they cannot be collected."""
    verdicts = Verdicts(tests)
    os.chdir(ROOT)
    quiet = [
        f"--rootdir={ROOT}",
        "--quiet",
        "--no-header",
        "--no-summary",
        "--tb=no",
        "-p",
        "no:cacheprovider",
    ]
    status = pytest.main([*quiet, *dict.fromkeys(tests.values())], plugins=[verdicts])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return None
    return list(rows(tests, verdicts.found))


def main(arguments: list[str]) -> int:
    """Run removal tests, and print a row for each release."""
    parser = argparse.ArgumentParser(description="Say which patches have had their day.")
    parser.add_argument("patches", nargs="*", metavar="ID", help="default: all")
    wanted = parser.parse_args(arguments).patches
    patches = load_patches()
    if unknown := [name for name in wanted if name not in patches]:
        parser.error(f"there is no patch {', '.join(unknown)}")
    table = judged({name: patches[name].remove.test for name in wanted or sorted(patches)})
    if table is None:
        return 2
    width = max((len(patch) for patch, *_ in table), default=0)
    for patch, release, what, why in table:
        print(f"{patch:<{width}}  {release:<24}{what}{': ' + why if why else ''}")
    return int(any(what in (READY, BROKEN) for *_, what, _ in table))
