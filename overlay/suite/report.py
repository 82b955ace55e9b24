"""The page about runs, in Markdown: nothing in it is typed by hand."""

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
    from collections.abc import Sequence
    from typing import Any

    from overlay.suite.compare import Change, Difference
    from overlay.suite.results import Results

#: Reasons of failures that are listed, the most frequent first; and characters of each.
_REASONS, _WIDTH = 12, 110

_COLUMNS = (
    "recipe",
    "files",
    "pass plain",
    "pass under overlay",
    "lost",
    "won",
    "still failing",
    "flaky",
    "skipped",
    "files hung",
)

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
    """Return the run whose results lie in a folder. Raises `SuiteError`."""
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
    """Return, as text, what a run shows of the patches that are decided to apply."""
    lines = []
    coverage = load(folder).coverage
    for item in _shown(coverage):
        lines.append(f"  {item.patch}: {_touched(item)}")
        lines += [f"    {trouble}" for trouble in item.troubles]
    others = _others(coverage)
    return (
        "\n".join([*lines, *([f"  {others}"] if others else [])]) or "  no patch applies to what was tested"
    )


def _shown(coverage: Sequence[Coverage]) -> list[Coverage]:
    """Return the patches for what was tested, and those that were applied to something else."""
    return [item for item in coverage if item.verdict == "apply" and (item.tested or item.applied)]


def _others(coverage: Sequence[Coverage]) -> str:
    """Say which selected patches a run cannot show anything of."""
    shown = _shown(coverage)
    rest = [item for item in coverage if item not in shown]
    counts = Counter(
        "for something else that is installed" if item.verdict == "apply" else item.verdict for item in rest
    )
    return f"other selected patches: {_counted(counts)}" if counts else ""


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))


def _touched(item: Coverage) -> str:
    if not item.applied:
        return f"selected and NEVER applied in {item.processes} processes: nothing is shown of it"
    text = (
        f"applied in {item.applied} of {item.processes} processes, {item.called} of {item.sites} sites called"
    )
    return f"{text}, {item.calls} calls" if item.calls else f"{text}: nothing is shown of it"


def page(runs: Sequence[Report]) -> str:
    """Return the page about some runs."""
    lines = [_HEAD]
    rows = [
        f"| {' | '.join(_COLUMNS)} |",
        "|---" * len(_COLUMNS) + "|",
    ]
    for report in runs:
        difference = report.difference
        counts = [
            len(report.run["files"]),
            _passed(report.plain),
            _passed(report.overlay),
            *(
                len(group)
                for group in (difference.lost, difference.won, difference.failing, difference.flaky)
            ),
            len([test for test in _first(report.overlay) if test.outcome == "skipped"]),
            len([file for file in report.overlay.files if file.attempt == 1 and file.outcome == "hung"]),
        ]
        rows.append(f"| {report.run['recipe']} | " + " | ".join(map(str, counts)) + " |")
    lines += ["\n".join(rows), ""]
    missing = sorted({*shipped()} - {report.run["recipe"] for report in runs})
    if missing:
        lines += [f"Recipes of which there are no results here: {', '.join(missing)}.", ""]
    for report in runs:
        lines += _section(report)
    return "\n".join(lines).rstrip()


def _section(report: Report) -> list[str]:
    run, difference = report.run, report.difference
    when = time.strftime("%Y-%m-%d", time.gmtime(run["began"]))
    versions = ", ".join(f"{name} {version or '(absent)'}" for name, version in run["versions"].items())
    code = ", ".join(f"{name}: {origin}" for name, origin in run["code"].items())
    lines = [
        f"## {run['recipe']}",
        "",
        f"{run['about']}.",
        "",
        f"- {when}, {run['seconds'] / 60:.0f} min with {run['jobs']} files at once on {run['cores']} cores "
        f"({run['machine']}), Python {run['python']}, overlay {run['overlay']}, plan `{run['digest'][:16]}`"
        + (", quick files only" if run["quick"] else ""),
        f"- tests: {run['tests']}",
        f"- code: {code}",
        f"- installed: {versions or 'nothing is asked for'}",
        f"- command: {_command(run)}",
    ]
    lines += [f"- not met: {text}" for text in run["lacking"]]
    since = sorted(load_patches().keys() - run["patches"].keys())
    if since:
        lines.append(f"- older than {', '.join(f'`{name}`' for name in since)}, and shows nothing of them")
    lines += ["", *_patches(report.coverage)]
    for kind, title in (
        ("lost", "Lost"),
        ("won", "Won"),
        ("flaky", "Flaky"),
        ("changed", "Otherwise changed"),
    ):
        lines += _changes(title, getattr(difference, kind))
    lines += _reasons(difference.failing)
    if run["excluded"]:
        counts = Counter(run["excluded"].values())
        lines += ["Files that are not run, by cause:", ""]
        lines += [f"- {count}: {reason}" for reason, count in counts.most_common()]
        lines.append("")
    return lines


def _command(run: dict[str, Any]) -> str:
    quick = " --quick" if run["quick"] else ""
    ranks = f"{run['ranks']} rank{'s' if run['ranks'] > 1 else ''}"
    inside = " ".join(run["command"]).replace("{", "").replace("}", "")
    each = f"for each file `{inside}`, {ranks}, at most {run['time_limit']} s"
    return f"`overlay suite run {run['recipe']}{quick}`, which runs {each}"


def _patches(coverage: Sequence[Coverage]) -> list[str]:
    shown = _shown(coverage)
    lines = []
    if shown:
        lines += [
            "| patch | applied in processes | sites called | calls | calls plain |",
            "|---|---|---|---|---|",
        ]
    for item in shown:
        where = f"{item.applied} of {item.processes}" if item.applied else f"**never** (of {item.processes})"
        called = f"{item.called} of {item.sites}"
        lines.append(f"| `{item.patch}` | {where} | {called} | {item.calls} | {item.plain_calls} |")
    silent = [item for item in shown if not item.calls]
    lines += ["", _proven(shown, silent), ""]
    troubles = [f"- `{item.patch}` {_short(text)}" for item in shown for text in item.troubles]
    if troubles:
        lines += [*troubles, ""]
    others = _others(coverage)
    return [*lines, *([f"{others[:1].upper()}{others[1:]}.", ""] if others else [])]


def _proven(shown: Sequence[Coverage], silent: Sequence[Coverage]) -> str:
    if not shown:
        return "No patch applies to what is tested here."
    text = f"{len(shown) - len(silent)} of {len(shown)} patches that apply here are called by this suite"
    return f"{text}; it proves nothing about {_listed(silent)}." if silent else f"{text}."


def _listed(items: Sequence[Coverage]) -> str:
    return ", ".join(f"`{item.patch}`" for item in items)


def _changes(title: str, changes: Sequence[Change]) -> list[str]:
    if not changes:
        return []
    lines = [f"{title}:", ""]
    for change in changes:
        said = change.known or (_short(change.reason) if change.reason else "")
        why = f": {said}" if said else ""
        lines.append(f"- `{change.id}` ({change.before} → {change.after}){why}")
    return [*lines, ""]


def _reasons(failing: Sequence[Change]) -> list[str]:
    if not failing:
        return []
    counts = Counter(change.known or _short(change.reason) for change in failing)
    lines = [f"Still failing, {len(failing)} by the first line of the reason:", ""]
    lines += [f"- {count}: {reason}" for reason, count in counts.most_common(_REASONS)]
    rest = len(failing) - sum(count for _, count in counts.most_common(_REASONS))
    return [*lines, *([f"- {rest}: other reasons"] if rest else []), ""]


def _short(text: str) -> str:
    """Return a reason as code, so that nothing in it means anything in Markdown."""
    text = text.replace("`", "'").strip()
    cut = text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"
    return f"`{cut}`" if cut else "(no reason given)"


def _first(found: Results) -> list[results.Test]:
    return [test for test in found.tests if test.attempt == 1]


def _passed(found: Results) -> int:
    return len([test for test in _first(found) if test.outcome == "passed"])
