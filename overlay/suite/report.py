"""Writes the results of runs as a page in Markdown, in which nothing is typed by hand."""

from __future__ import annotations

import json
import os
import time
from collections import Counter

from overlay.base.record import TYPE_CHECKING, Record
from overlay.catalogue.registry import load_patches
from overlay.errors import SuiteError
from overlay.suite import results
from overlay.suite.compare import compare
from overlay.suite.recipe import Known, shipped

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from typing import Any

    from overlay.suite.compare import Change, Difference
    from overlay.suite.results import Results

#: Reasons of failures that are listed, the most frequent first; and characters of each.
_REASONS, _WIDTH = 12, 110

_HEAD = """# Upstream's own tests, with and without overlay

<!-- Written by `overlay suite report`: not to be edited. -->

Each recipe runs the same node ids twice, plain and under overlay, each file in processes of its own.
*Lost*: passed plain and does not under overlay. *Won*: the other way round. *Still failing*: fails in both;
a suite made for GPUs and a network fails in part on a machine without. *Flaky*: had different outcomes in
one and the same mode.

A suite that does not call what a patch replaces shows that nothing else broke, and proves nothing about the
patch. So the tables of patches count, over all processes that ran tests, where each was applied, how many
of its sites were called, and how often. In the plain run, the calls of a name that a module has imported
are those of what it imports. Processes that tests start themselves get overlay too, and are not counted.
"""


class Coverage(Record):
    """What a run shows of one patch."""

    patch: str
    verdict: str
    reason: str
    #: Whether it replaces something in a package under test.
    tested: bool
    #: Processes in which it is in place, of all that report a ledger.
    applied: int
    processes: int
    sites: int
    called: int
    calls: int
    #: Calls of the same sites in the plain run.
    plain_calls: int
    #: States that are neither applied nor armed, with the reason.
    troubles: tuple[str, ...] = ()


class Report(Record):
    """One run, as it is reported."""

    run: dict[str, Any]
    plain: Results
    overlay: Results
    difference: Difference
    coverage: tuple[Coverage, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the run, its difference and the patches as plain data."""
        return {
            **self.run,
            "difference": self.difference.to_dict(),
            "coverage": [item.to_dict() for item in self.coverage],
        }


def load(folder: str) -> Report:
    """Return the run whose results are in a folder. Raises `SuiteError`."""
    path = os.path.join(folder, "run.json")
    try:
        with open(path, encoding="utf-8") as file:
            run = json.load(file)
    except (OSError, ValueError) as error:
        raise SuiteError(f"the results {path} cannot be read: {error}") from error
    if not isinstance(run, dict) or run.get("format") != results.FORMAT:
        raise SuiteError(f"the results {path} are not those of this overlay: run the recipe again")
    plain, overlay = (results.read(os.path.join(folder, mode)) for mode in ("plain", "overlay"))
    known = [Known(**item) for item in run["known"]]
    return Report(
        run=run,
        plain=plain,
        overlay=overlay,
        difference=compare(plain, overlay, known),
        coverage=_coverage(run, plain, overlay),
    )


def _coverage(run: dict[str, Any], plain: Results, overlay: Results) -> tuple[Coverage, ...]:
    found = []
    ran, plain_ran = (
        [process for process in part.processes if process.attempt == 1] for part in (overlay, plain)
    )
    for name, patch in run["patches"].items():
        if not patch["selected"]:
            continue
        states = [process.patches[name] for process in ran if name in process.patches]
        troubles = {
            f"{state['state']}: {state['reason']}"
            for state in states
            if state["state"] in ("failed", "incomplete")
        }
        calls = {site: sum(process.calls.get(site, 0) for process in ran) for site in patch["sites"]}
        found.append(
            Coverage(
                patch=name,
                verdict=patch["verdict"],
                reason=patch["reason"],
                tested=any(site.partition(".")[0] in run["code"] for site in patch["sites"]),
                applied=len([state for state in states if state["state"] in ("applied", "incomplete")]),
                processes=len(ran),
                sites=len(calls),
                called=len([site for site, count in calls.items() if count]),
                calls=sum(calls.values()),
                plain_calls=sum(process.calls.get(site, 0) for process in plain_ran for site in calls),
                troubles=tuple(sorted(troubles)),
            )
        )
    return tuple(found)


def untouched(folder: str) -> str:
    """Return, as text, what a run shows about the patches that apply."""
    lines = []
    coverage = load(folder).coverage
    for item in _shown(coverage):
        lines.append(f"  {item.patch}: {_touched(item)}")
        lines += [f"    {trouble}" for trouble in item.troubles]
    others = _others(coverage)
    lines += [f"  {others}"] if others else []
    return "\n".join(lines) or "  no patch applies to what was tested"


def _shown(coverage: Sequence[Coverage]) -> list[Coverage]:
    """Return the patches for what was tested, and those that were applied to something else."""
    return [item for item in coverage if item.verdict == "apply" and (item.tested or item.applied)]


def _others(coverage: Sequence[Coverage]) -> str:
    """Return a phrase on the selected patches about which a run shows nothing."""
    shown = _shown(coverage)
    rest = [item for item in coverage if item not in shown]
    counts = Counter(
        "for something else that is installed" if item.verdict == "apply" else item.verdict for item in rest
    )
    told = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
    return f"other selected patches: {told}" if told else ""


def _touched(item: Coverage) -> str:
    if not item.applied:
        return f"selected and NEVER applied in {item.processes} processes: nothing is shown of it"
    text = (
        f"applied in {item.applied} of {item.processes} processes, {item.called} of {item.sites} sites called"
    )
    return f"{text}, {item.calls} calls" if item.calls else f"{text}: nothing is shown of it"


def page(runs: Sequence[Report]) -> str:
    """Return the page about some runs."""
    counts = [_counts(report) for report in runs]
    lines = [_HEAD, *_table(counts[0], (row.values() for row in counts)), ""]
    missing = sorted({*shipped()} - {report.run["recipe"] for report in runs})
    if missing:
        lines += [f"Recipes of which there are no results here: {', '.join(missing)}.", ""]
    for report in runs:
        lines += _section(report)
    return "\n".join(lines).rstrip()


def _counts(report: Report) -> dict[str, object]:
    """Return the row of a run in the table of all runs, by column."""
    difference = report.difference
    plain, overlay = (
        Counter(test.outcome for test in part.tests if test.attempt == 1)
        for part in (report.plain, report.overlay)
    )
    hung = [file for file in report.overlay.files if file.attempt == 1 and file.outcome == "hung"]
    return {
        "recipe": report.run["recipe"],
        "files": len(report.run["files"]),
        "pass plain": plain["passed"],
        "pass under overlay": overlay["passed"],
        "lost": len(difference.lost),
        "won": len(difference.won),
        "still failing": len(difference.failing),
        "flaky": len(difference.flaky),
        "skipped": overlay["skipped"],
        "files hung": len(hung),
    }


def _section(report: Report) -> list[str]:
    run, difference = report.run, report.difference
    when = time.strftime("%Y-%m-%d", time.gmtime(run["began"]))
    versions = ", ".join(f"{name} {version or '(absent)'}" for name, version in run["versions"].items())
    code = ", ".join(f"{name}: {origin}" for name, origin in run["code"].items())
    facts = [
        f"{when}, {run['seconds'] / 60:.0f} min with {run['jobs']} files at once on {run['cores']} cores "
        f"({run['machine']}), Python {run['python']}, overlay {run['overlay']}, plan `{run['digest'][:16]}`"
        + (", quick files only" if run["quick"] else ""),
        f"tests: {run['tests']}",
        f"code: {code}",
        f"installed: {versions or 'nothing is asked for'}",
        f"command: {_command(run)}",
        *(f"not met: {text}" for text in run["lacking"]),
    ]
    since = sorted(load_patches().keys() - run["patches"].keys())
    if since:
        facts.append(f"older than {', '.join(f'`{name}`' for name in since)}, and shows nothing of them")
    lines = _listed(f"## {run['recipe']}\n\n{run['about']}.", facts)
    lines += _patches(report.coverage)
    titles = {"lost": "Lost", "won": "Won", "flaky": "Flaky", "changed": "Otherwise changed"}
    for kind, title in titles.items():
        lines += _listed(f"{title}:", map(_change, getattr(difference, kind)))
    failing = Counter(change.known or _short(change.reason) for change in difference.failing)
    reasons = [f"{count}: {reason}" for reason, count in failing.most_common(_REASONS)]
    rest = len(difference.failing) - sum(count for _, count in failing.most_common(_REASONS))
    reasons += [f"{rest}: other reasons"] if rest else []
    lines += _listed(f"Still failing, {len(difference.failing)} by the first line of the reason:", reasons)
    causes = Counter(run["excluded"].values())
    excluded = [f"{count}: {reason}" for reason, count in causes.most_common()]
    return lines + _listed("Files that are not run, by cause:", excluded)


def _command(run: dict[str, Any]) -> str:
    quick = " --quick" if run["quick"] else ""
    ranks = f"{run['ranks']} rank{'s' if run['ranks'] > 1 else ''}"
    inside = " ".join(run["command"]).replace("{", "").replace("}", "")
    each = f"for each file `{inside}`, {ranks}, at most {run['time_limit']} s"
    return f"`overlay suite run {run['recipe']}{quick}`, which runs {each}"


def _patches(coverage: Sequence[Coverage]) -> list[str]:
    """Return what a run shows about each patch: a table, and a sentence on those that it never calls."""
    shown = _shown(coverage)
    rows = [
        (
            f"`{item.patch}`",
            f"{item.applied} of {item.processes}" if item.applied else f"**never** (of {item.processes})",
            f"{item.called} of {item.sites}",
            item.calls,
            item.plain_calls,
        )
        for item in shown
    ]
    head = ("patch", "applied in processes", "sites called", "calls", "calls plain")
    silent = [f"`{item.patch}`" for item in shown if not item.calls]
    said = f"{len(shown) - len(silent)} of {len(shown)} patches that apply here are called by this suite"
    said += f"; it proves nothing about {', '.join(silent)}." if silent else "."
    lines = (
        [*_table(head, rows), "", said, ""] if shown else ["", "No patch applies to what is tested here.", ""]
    )
    troubles = [f"- `{item.patch}` {_short(text)}" for item in shown for text in item.troubles]
    lines += [*troubles, ""] if troubles else []
    others = _others(coverage)
    return [*lines, f"{others[:1].upper()}{others[1:]}.", ""] if others else lines


def _change(change: Change) -> str:
    said = change.known or (_short(change.reason) if change.reason else "")
    return f"`{change.id}` ({change.before} → {change.after})" + (f": {said}" if said else "")


def _table(head: Collection[object], rows: Iterable[Iterable[object]]) -> list[str]:
    """Return a table in Markdown."""
    names, *others = (f"| {' | '.join(map(str, cells))} |" for cells in (head, *rows))
    return [names, "|---" * len(head) + "|", *others]


def _listed(title: str, points: Iterable[str]) -> list[str]:
    """Return a list in Markdown under its title, nothing without points."""
    lines = [f"- {point}" for point in points]
    return [title, "", *lines, ""] if lines else []


def _short(text: str) -> str:
    """Return a reason as code, so that nothing in it means anything in Markdown."""
    text = text.replace("`", "'").strip()
    cut = text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"
    return f"`{cut}`" if cut else "(no reason given)"
