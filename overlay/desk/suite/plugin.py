"""The pytest plugin that a run loads into each of its processes. `OVERLAY_SUITE` tells it MODE:FOLDER.

In the mode `overlay` it enables overlay when it is imported: before any conftest of an upstream. Workers of
xdist import what `-p` names after the conftests, and what `PYTEST_PLUGINS` names before: a run uses both.

Each process leaves two files in the folder, named by its rank and process id:

    .part   node id, outcome and reason of each test, a line of JSON, written at once; `.ended` when it ends
    .json   whether overlay was on, and state and counts of each patch
"""

from __future__ import annotations

import json
import os

from overlay.runtime.process import here

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pytest

#: The name of this module, and of the variable.
PLUGIN, VARIABLE = "overlay.desk.suite.plugin", "OVERLAY_SUITE"

_mode, _, _folder = os.environ.get(VARIABLE, "").partition(":")
if _mode == "overlay":
    here().enable()


def pytest_configure(config: pytest.Config) -> None:
    """Note what becomes of tests, unless a test has started this pytest."""
    if _folder and "PYTEST_CURRENT_TEST" not in os.environ:
        stem = os.path.join(_folder, f"{os.environ.get('RANK', '0')}-{os.getpid()}")
        config.pluginmanager.register(_Notes(stem))


class _Notes:
    def __init__(self, stem: str) -> None:
        self._stem = stem
        self._log = open(f"{stem}.part", "w", encoding="utf-8")  # noqa: SIM115 -- until the process ends

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._note(report, "error")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:
            self._write_ledger()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and hasattr(report, "wasxfail"):
            self._note(report, "xfailed")
        elif report.when == "call" or not report.passed:
            self._note(report, report.outcome if report.when == "call" or report.skipped else "error")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if os.path.exists(f"{self._stem}.json"):
            self._write_ledger()
        self._log.close()
        os.replace(self._log.name, f"{self._stem}.ended")
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            # A launcher kills all other ranks as soon as one of them says that a test failed.
            session.exitstatus = 0

    def _note(self, report: pytest.CollectReport | pytest.TestReport, outcome: str) -> None:
        why = report.longrepr
        crash = getattr(why, "reprcrash", None)
        errors = [line[1:] for line in report.longreprtext.splitlines() if line.startswith("E ")]
        text = crash.message if crash else why[2] if isinstance(why, tuple) else "".join(errors[:1])
        reason = (text.strip().splitlines() or [""])[0][:300]
        self._log.write(json.dumps([report.nodeid, outcome, reason]) + "\n")
        self._log.flush()

    def _write_ledger(self) -> None:
        status = here().status()
        patches = {
            one.patch: {"state": one.state, "why": one.why(), "counts": one.effect and one.effect.values}
            for one in status.patches
        }
        with open(f"{self._stem}.draft", "w", encoding="utf-8") as file:
            json.dump({"enabled": status.enabled, "patches": patches}, file)
        os.replace(f"{self._stem}.draft", f"{self._stem}.json")
