"""The pytest plugin that a run loads into every process: `-p overlay.suite.plugin`.

It enables overlay when it is imported, if the run is one under overlay: before any conftest and any plugin of
an upstream. The workers of xdist import what `-p` names after the conftests, and what `PYTEST_PLUGINS` names
before, so a run says both.

It writes JSON lines into a file of this process, each as soon as it is known: a process that is killed leaves
what it had.
"""

from __future__ import annotations

import json
import os
import time

from overlay.base.record import TYPE_CHECKING
from overlay.enabling.process import here
from overlay.suite.calls import CallCounter
from overlay.suite.results import VARIABLE

if TYPE_CHECKING:
    from typing import Any

    import pytest

#: Seconds between two notes of the ledger while tests run.
_PERIOD = 5.0

#: Characters of a reason that are kept.
_LONGEST = 300


class Recorder:
    """What this process writes down."""

    def __init__(self, folder: str, mode: str, sites: dict[str, list[str]]) -> None:
        name = f"{os.environ.get('RANK', '0')}-{os.getpid()}.jsonl"
        self._file = open(os.path.join(folder, name), "a", encoding="utf-8")  # noqa: SIM115 -- until the end
        self._mode = mode
        self._noted = time.monotonic()
        self._pid = os.getpid()
        self.worker = ""
        self._calls = CallCounter(sorted({site for group in sites.values() for site in group}))

    def write(self, kind: str, **values: Any) -> None:
        """Write one line. The child of a fork writes none: its parent's file is not its own."""
        if os.getpid() == self._pid:
            self._file.write(json.dumps({"kind": kind, **values}) + "\n")
            self._file.flush()

    def note(self, *, now: bool) -> None:
        """Write the current ledger and calls, unless that was done a moment ago and need not be `now`."""
        if not now and time.monotonic() - self._noted < _PERIOD:
            return
        self._noted = time.monotonic()
        patches = {}
        for patch in here().status().patches if self._mode == "overlay" else ():
            reason = patch.reason or (patch.verdict.reason if patch.verdict is not None else "")
            patches[patch.patch] = {
                "state": patch.state,
                "verdict": patch.verdict.verdict if patch.verdict is not None else "",
                "reason": reason[:_LONGEST],
            }
        self.write(
            "process",
            pid=self._pid,
            rank=int(os.environ.get("RANK", "0")),
            worker=self.worker,
            patches=patches,
            calls=self._calls.counts(),
        )


def _begin() -> Recorder | None:
    path = os.environ.get(VARIABLE)
    if not path:
        return None
    with open(path, encoding="utf-8") as file:
        task = json.load(file)
    if task["mode"] == "overlay":
        here().enable()
    if "PYTEST_CURRENT_TEST" in os.environ:
        return None  # a test has started this pytest, and its tests are none of the run's
    return Recorder(task["folder"], task["mode"], task["sites"])


_recorder = _begin()


def pytest_configure(config: pytest.Config) -> None:
    """Find out whether this is a worker of xdist, and which."""
    if _recorder is not None:
        _recorder.worker = getattr(config, "workerinput", {}).get("workerid", "")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Write down what will be run: a process that hangs does not get to all of it."""
    if _recorder is not None and session.items:
        _recorder.write("collected", ids=[item.nodeid for item in session.items])
        _recorder.note(now=True)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Write down that a module cannot be imported, or is skipped as a whole."""
    if _recorder is None or _recorder.worker or report.outcome == "passed":
        return
    outcome = "skipped" if report.skipped else "error"
    _recorder.write("report", id=report.nodeid, outcome=outcome, seconds=0.0, reason=_reason(report))


def pytest_runtest_logstart(nodeid: str) -> None:
    """Write down which test begins."""
    if _recorder is not None and not _recorder.worker:
        _recorder.write("begin", id=nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write down what became of a test. With xdist the reports of all workers come to the process above."""
    if _recorder is None:
        return
    if not _recorder.worker and (report.when == "call" or not report.passed):
        _recorder.write(
            "report",
            id=report.nodeid,
            outcome=_outcome(report),
            seconds=round(report.duration, 3),
            reason="" if report.passed else _reason(report),
        )
    if report.when == "teardown":
        _recorder.note(now=False)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the ledger of this process, and that it came to its end."""
    if _recorder is None:
        return
    _recorder.note(now=True)
    if not _recorder.worker:
        _recorder.write("end")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # A launcher would kill all other ranks as soon as one of them says that a test failed.
        session.exitstatus = 0


def _outcome(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    if report.failed and report.when != "call":
        return "error"
    return str(report.outcome)


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return the first line of why a test did not pass."""
    told: Any = report.longrepr
    if hasattr(report, "wasxfail"):
        text = str(report.wasxfail)
    elif isinstance(told, tuple):
        text = str(told[2])
    elif getattr(told, "reprcrash", None) is not None:
        text = str(told.reprcrash.message)
    else:
        lines = [line[1:].strip() for line in str(told).splitlines() if line.startswith("E ")]
        text = lines[0] if lines else str(told).strip().rpartition("\n")[2]
    return (text.strip().splitlines() or [""])[0][:_LONGEST]
