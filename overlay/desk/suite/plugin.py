"""The pytest plugin that a run loads into each of its processes, which it tells `OVERLAY_SUITE=MODE:FOLDER`.

Under overlay it enables overlay when it is imported: before any conftest of an upstream. The workers of xdist
import what `-p` names after the conftests, and what `PYTEST_PLUGINS` names before, so a run says both.

Each process leaves three files in the folder, named by its rank and process id:

    .xml    what pytest writes with `--junitxml` when it ends
    .log    outcome and node id of each test, written at once: all that is left if the process is killed
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
    """Have pytest write its results, unless a test has started this pytest."""
    if _folder and "PYTEST_CURRENT_TEST" not in os.environ:
        stem = os.path.join(_folder, f"{os.environ.get('RANK', '0')}-{os.getpid()}")
        config.option.xmlpath = f"{stem}.xml"
        config.pluginmanager.register(_Notes(stem))


class _Notes:
    """What this process writes besides pytest's own results."""

    def __init__(self, stem: str) -> None:
        self._stem = stem
        self._log = open(f"{stem}.log", "w", encoding="utf-8")  # noqa: SIM115 -- until the process ends

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:
            self._write_ledger()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self._log.write(f"{report.outcome} {report.nodeid}\n")
            self._log.flush()

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if os.path.exists(f"{self._stem}.json"):
            self._write_ledger()
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            # A launcher kills all other ranks as soon as one of them says that a test failed.
            session.exitstatus = 0

    def _write_ledger(self) -> None:
        status = here().status()
        patches = {
            one.patch: {"state": one.state, "why": one.why(), "counts": one.effect and one.effect.values}
            for one in status.patches
        }
        with open(f"{self._stem}.draft", "w", encoding="utf-8") as file:
            json.dump({"enabled": status.enabled, "patches": patches}, file)
        os.replace(f"{self._stem}.draft", f"{self._stem}.json")
