"""The results of a run: JSON lines for each node id, file and process; and the same as JUnit XML."""

from __future__ import annotations

import json
import os

from overlay._record import TYPE_CHECKING, Record
from overlay.errors import SuiteError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

#: What may become of a test, the worst last. Of several ranks, and of a test and its teardown, the worst counts.
OUTCOMES = (
    "skipped",
    "xfailed",
    "xpassed",
    "passed",
    "not-run",
    "failed",
    "error",
    "crashed",
    "hung",
)
FAILING = frozenset({"not-run", "failed", "error", "crashed", "hung"})

NAME = "results.jsonl"


class Test(Record):
    """One node id in one attempt."""

    __test__ = False  # pytest must not take it for a test

    id: str
    file: str
    attempt: int
    outcome: str
    seconds: float
    #: First line of why it did not pass.
    reason: str = ""


class File(Record):
    """One test file in one attempt."""

    file: str
    attempt: int
    #: `finished`, `crashed` or `hung`.
    outcome: str
    seconds: float
    status: int | None


class Process(Record):
    """One process that ran tests: its ledger, and the calls of the functions at patched sites."""

    file: str
    attempt: int
    pid: int
    rank: int
    #: The worker of xdist, empty if it is none.
    worker: str
    #: Patch id to `state`, `verdict` and `reason`; empty in a plain run.
    patches: dict[str, dict[str, str]]
    calls: dict[str, int]


class Results(Record):
    """A whole run in one mode."""

    tests: tuple[Test, ...] = ()
    files: tuple[File, ...] = ()
    processes: tuple[Process, ...] = ()

    def outcomes(self) -> dict[str, list[Test]]:
        """Return the attempts of each node id, in the order of the run."""
        found: dict[str, list[Test]] = {}
        for test in self.tests:
            found.setdefault(test.id, []).append(test)
        return found


def gather(folder: str, file: str, attempt: int, ended: File, last_words: str) -> Results:
    """Put together what the processes of one test file wrote down."""
    tests: dict[str, Test] = {}
    processes: list[Process] = []

    def add(name: str, outcome: str, seconds: float, reason: str) -> None:
        new = Test(id=name, file=file, attempt=attempt, outcome=outcome, seconds=seconds, reason=reason)
        old = tests.get(name)
        if old is None or OUTCOMES.index(outcome) > OUTCOMES.index(old.outcome):
            tests[name] = new

    wrote = finished = False
    for lines in _written(folder):
        wrote = True
        ends = any(line["kind"] == "end" for line in lines)
        finished = finished or ends
        open_, waiting = _unfinished(lines)
        for line in lines:
            if line["kind"] == "report":
                add(line["id"], line["outcome"], line["seconds"], line["reason"])
        worker = any(line["kind"] == "process" and line["worker"] for line in lines)
        if not ends and not worker:
            how = "hung" if ended.status is None else "crashed"
            why = f"no end within {ended.seconds:.0f} s" if ended.status is None else last_words
            for name in open_:
                add(name, how, ended.seconds, why)
            for name in waiting:
                add(name, "not-run", 0.0, f"the file {how} before")
        notes = [line for line in lines if line["kind"] == "process"]
        if notes:
            values = {key: value for key, value in notes[-1].items() if key != "kind"}
            processes.append(Process(file=file, attempt=attempt, **values))
    if not tests and ended.outcome != "finished":
        # Not even collected, or no process got as far as that.
        add(file, ended.outcome, ended.seconds, last_words)
    elif not wrote:
        add(file, "error", ended.seconds, last_words)
    return Results(tests=tuple(tests.values()), files=(ended,), processes=tuple(processes))


def _written(folder: str) -> list[list[dict[str, Any]]]:
    """Return the lines of each process. The last one of a process that was killed may be cut off."""
    found = []
    for name in sorted(os.listdir(folder)):
        if name.endswith(".jsonl"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                text = file.read()
            found.append([json.loads(line) for line in text.splitlines() if line.endswith("}")])
    return found


def _unfinished(lines: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """Return what had begun and not ended, and what had been collected and not begun."""
    collected = [name for line in lines if line["kind"] == "collected" for name in line["ids"]]
    begun = [line["id"] for line in lines if line["kind"] == "begin"]
    reported = {line["id"] for line in lines if line["kind"] == "report"}
    return [name for name in begun if name not in reported], [name for name in collected if name not in begun]


def join(parts: Iterable[Results]) -> Results:
    """Return several results as one."""
    found = tuple(parts)
    return Results(
        tests=tuple(test for part in found for test in part.tests),
        files=tuple(file for part in found for file in part.files),
        processes=tuple(process for part in found for process in part.processes),
    )


_KINDS: dict[str, type[Test | File | Process]] = {"test": Test, "file": File, "process": Process}


def write(results: Results, path: str) -> None:
    """Write results as JSON lines."""
    with open(path, "w", encoding="utf-8") as file:
        for kind, group in (("test", results.tests), ("file", results.files), ("process", results.processes)):
            for item in group:
                file.write(json.dumps({"kind": kind, **item.to_dict()}) + "\n")


def read(path: str) -> Results:
    """Return the results in a file, or in a folder that has one. Raises `SuiteError`."""
    if os.path.isdir(path):
        path = os.path.join(path, NAME)
    found: dict[str, list[Any]] = {kind: [] for kind in _KINDS}
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                values = json.loads(line)
                kind = values.pop("kind")
                found[kind].append(_KINDS[kind](**values))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SuiteError(f"the results {path} cannot be read: {error}") from error
    return Results(tests=tuple(found["test"]), files=tuple(found["file"]), processes=tuple(found["process"]))


def write_junit(results: Results, path: str, name: str) -> None:
    """Write the first attempt of each test as JUnit XML."""
    from xml.etree import ElementTree as Xml

    suites = Xml.Element("testsuites")
    by_file: dict[str, list[Test]] = {}
    for attempts in results.outcomes().values():
        by_file.setdefault(attempts[0].file, []).append(attempts[0])
    for file, tests in by_file.items():
        failing = [test for test in tests if test.outcome in FAILING]
        suite = Xml.SubElement(suites, "testsuite", name=f"{name} {file}", tests=str(len(tests)))
        suite.set("failures", str(len([test for test in failing if test.outcome == "failed"])))
        suite.set("errors", str(len([test for test in failing if test.outcome != "failed"])))
        suite.set("skipped", str(len([test for test in tests if test.outcome in ("skipped", "xfailed")])))
        for test in tests:
            case = Xml.SubElement(suite, "testcase", classname=file, name=test.id, time=f"{test.seconds:.3f}")
            if test.outcome in FAILING:
                tag = "failure" if test.outcome == "failed" else "error"
                Xml.SubElement(case, tag, message=_printable(f"{test.outcome}: {test.reason}"))
            elif test.outcome in ("skipped", "xfailed"):
                Xml.SubElement(case, "skipped", message=_printable(test.reason))
    Xml.ElementTree(suites).write(path, encoding="utf-8", xml_declaration=True)


def _printable(text: str) -> str:
    """Return a text without the characters that XML cannot hold."""
    return "".join(char if char.isprintable() else "?" for char in text)
