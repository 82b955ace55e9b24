"""The results of a run: one JSON line for each test, file and process, and the tests as JUnit XML."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from glob import glob

from overlay.base.record import TYPE_CHECKING, Record
from overlay.errors import SuiteError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

#: What may become of a test. Of several ranks, and of a test and its teardown, the last of these counts.
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

#: The pytest plugin that writes what becomes of the tests, and the variable that names the file with what a
#: process is to do: `overlay suite` sets it, nobody else.
PLUGIN, VARIABLE = "overlay.suite.plugin", "OVERLAY_SUITE"

NAME = "results.jsonl"
#: What `run.json` holds, by its format.
FORMAT = 1


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


def gather(folder: str, ended: File, last_words: str) -> Results:
    """Merge what the processes of one test file have written."""
    tests: dict[str, Test] = {}

    def add(name: str, outcome: str, seconds: float, reason: str) -> None:
        new = Test(
            id=name, file=ended.file, attempt=ended.attempt, outcome=outcome, seconds=seconds, reason=reason
        )
        old = tests.get(name)
        if old is None or OUTCOMES.index(outcome) > OUTCOMES.index(old.outcome):
            tests[name] = new

    processes: list[Process] = []
    for lines in _by_rank(folder):
        for line in lines["report"]:
            add(line["id"], line["outcome"], line["seconds"], line["reason"])
        if not lines["end"]:
            ended = ended.replace(outcome="hung" if ended.status is None else "crashed")
            why = f"no end within {ended.seconds:.0f} s" if ended.status is None else last_words
            unfinished, waiting = _left_over(lines)
            for name in unfinished:
                add(name, ended.outcome, ended.seconds, why)
            for name in waiting:
                add(name, "not-run", 0.0, f"the file {ended.outcome} before")
        notes = {line["pid"]: line for line in lines["process"]}  # the last one of each
        processes += [_process(ended, note) for note in notes.values()]
    if not tests and ended.status not in _NOTHING_WRONG:
        # Not even collected.
        outcome = "error" if ended.outcome == "finished" else ended.outcome
        add(ended.file, outcome, ended.seconds, last_words)
    return Results(tests=tuple(tests.values()), files=(ended,), processes=tuple(processes))


#: Exit statuses of pytest: all is well, and there is no test.
_NOTHING_WRONG = (0, 5)


def _process(ended: File, note: dict[str, Any]) -> Process:
    values = {key: value for key, value in note.items() if key != "kind"}
    return Process(file=ended.file, attempt=ended.attempt, **values)


def _by_rank(folder: str) -> list[dict[str, list[dict[str, Any]]]]:
    """Return the lines that the processes of each rank wrote, by kind. Workers of xdist are of one rank."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for name in sorted(glob("*.jsonl", root_dir=folder)):
        kinds = found.setdefault(name.partition("-")[0], defaultdict(list))
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            for line in file:
                if line.endswith("\n"):  # else its process was killed while it wrote it
                    values = json.loads(line)
                    kinds[values["kind"]].append(values)
    return list(found.values())


def _left_over(lines: dict[str, list[dict[str, Any]]]) -> tuple[list[str], list[str]]:
    """Return the tests that began and did not end, and those that were collected and did not begin."""
    begun = {line["id"] for line in lines["begin"]}
    reported = {line["id"] for line in lines["report"]}
    collected = dict.fromkeys(name for line in lines["collected"] for name in line["ids"])
    return sorted(begun - reported), [name for name in collected if name not in begun | reported]


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
            file.writelines(json.dumps({"kind": kind, **item.to_dict()}) + "\n" for item in group)


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
    from xml.etree import ElementTree as ET

    suites = ET.Element("testsuites")
    by_file: dict[str, list[Test]] = {}
    for attempts in results.outcomes().values():
        by_file.setdefault(attempts[0].file, []).append(attempts[0])
    for file, tests in by_file.items():
        failing = [test for test in tests if test.outcome in FAILING]
        suite = ET.SubElement(suites, "testsuite", name=f"{name} {file}", tests=str(len(tests)))
        suite.set("failures", str(len([test for test in failing if test.outcome == "failed"])))
        suite.set("errors", str(len([test for test in failing if test.outcome != "failed"])))
        suite.set("skipped", str(len([test for test in tests if test.outcome in ("skipped", "xfailed")])))
        for test in tests:
            case = ET.SubElement(suite, "testcase", classname=file, name=test.id, time=f"{test.seconds:.3f}")
            if test.outcome in FAILING:
                tag = "failure" if test.outcome == "failed" else "error"
                ET.SubElement(case, tag, message=_printable(f"{test.outcome}: {test.reason}"))
            elif test.outcome in ("skipped", "xfailed"):
                ET.SubElement(case, "skipped", message=_printable(test.reason))
    ET.ElementTree(suites).write(path, encoding="utf-8", xml_declaration=True)


def _printable(text: str) -> str:
    """Return a text without the characters that XML cannot hold."""
    return "".join(char if char.isprintable() else "?" for char in text)
