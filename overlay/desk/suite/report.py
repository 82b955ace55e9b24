"""Reads what pytest wrote in two runs, compares it by node id, and says it in Markdown."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from glob import glob
from typing import Any

from overlay.errors import SuiteError

#: By node id, its attempts: of each the outcome, and the first line of why the test did not pass.
Results = dict[str, list[tuple[str, str]]]


#: What becomes of a test, or of a file of tests. If several ranks, or a test and its teardown, differ, the
#: one that comes last here counts. A test is `missing` if a run does not have it.
TEST_OUTCOMES = ("missing", "skipped", "xfailed", "passed", "failed", "error", "crashed", "hung")
_FAILING = frozenset(TEST_OUTCOMES[4:])
_GOOD = frozenset({"passed", "xfailed"})

#: What becomes of a test between two runs, and what that is called.
KINDS = {
    "lost": "passed and does not any more, or fails and did not",
    "won": "failed and passes",
    "flaky": "had different outcomes in one and the same run",
    "changed": "differs otherwise: is skipped in one of them, for instance",
    "failing": "fails in both",
}
#: Reasons that are listed, the most frequent first, and characters of each.
_REASONS, _WIDTH = 12, 110


def read(path: str) -> Results:
    """Return the results in the folder of one mode of a run. Raises `SuiteError`: there are none."""
    found: Results = {}
    # Reasons must not name a folder of this machine.
    tree = os.path.join(os.path.dirname(os.path.abspath(path)), "work", os.path.basename(path), "")
    for place in sorted(glob("[0-9]*/**/output.txt", root_dir=path, recursive=True)):
        for name, (outcome, reason) in outcomes(os.path.join(path, os.path.dirname(place))).items():
            found.setdefault(name, []).append((outcome, reason.replace(tree, "")))
    if not found:
        raise SuiteError(f"there are no results in {path}")
    return found


def outcomes(place: str) -> dict[str, tuple[str, str]]:
    """Return outcome and reason by node id, as the processes of a test file left them in a folder."""
    found: list[tuple[str, str, str]] = []
    for name in glob("*.part", root_dir=place) + glob("*.ended", root_dir=place):
        with open(os.path.join(place, name), encoding="utf-8") as lines:
            found += map(json.loads, lines)
    found.sort(key=lambda one: TEST_OUTCOMES.index(one[1]))
    return {name: (outcome, reason) for name, outcome, reason in found}


def changed_outcomes(before: Results, after: Results) -> dict[str, Any]:
    """Return by kind what differs between two runs, and under `passing` how many tests pass in both."""
    found: dict[str, Any] = {**{kind: [] for kind in KINDS}, "passing": 0}
    for name in dict.fromkeys((*before, *after)):
        first, second = before.get(name, [("missing", "")]), after.get(name, [("missing", "")])
        one, other = _overall(first), _overall(second)
        if "/" in one or "/" in other:
            kind = "flaky"
        elif other in _FAILING:
            kind = "failing" if one in _FAILING else "lost"
        elif other in _GOOD and one in _GOOD:
            found["passing"] += 1
            continue
        elif one == other:
            continue
        else:
            kind = "lost" if one in _GOOD else "won" if one in _FAILING and other in _GOOD else "changed"
        reason = next((said for outcome, said in (*second, *first) if outcome not in _GOOD and said), "")
        found[kind].append({"id": name, "before": one, "after": other, "reason": reason})
    return found


def _overall(attempts: Sequence[tuple[str, str]]) -> str:
    """Return the outcome of all attempts, or two of them if they differ in whether the test passed."""
    first, *others = (outcome for outcome, _ in attempts)
    other = next((outcome for outcome in others if (outcome in _GOOD) != (first in _GOOD)), None)
    return first if other is None else f"{first}/{other}"


def ledgers(place: str) -> list[dict[str, Any]]:
    """Return what processes that ran tests said of overlay, of all test files below a folder."""
    found = []
    for name in glob("**/*-*.json", root_dir=place, recursive=True):
        with open(os.path.join(place, name), encoding="utf-8") as file:
            found.append(json.load(file))
    return found


def coverage(place: str) -> list[dict[str, Any]]:
    """Return what processes that ran tests show of each selected patch, from all ledgers below a folder."""
    processes, found = ledgers(place), []
    for patch in dict.fromkeys(patch for one in processes for patch in one["patches"]):
        states = [one["patches"][patch] for one in processes if patch in one["patches"]]
        counts = [one["counts"] for one in states if one["counts"] is not None]
        # If `changed` is missing, it is on a device or in compiled code, and nobody knows it.
        told = bool(counts) and all("changed" in one for one in counts)
        applied = [one for one in states if one["state"] in ("applied", "incomplete")]
        wrong = [one for one in states if one["state"] not in ("applied", "waiting")]
        found.append(
            {
                "patch": patch,
                "applied": len(applied),
                "processes": len(processes),
                # How often it had something to look at, and how often it changed that, if it counts this.
                "calls": sum(one.get("calls", one.get("changed", 0)) for one in counts) if counts else None,
                "changed": sum(one["changed"] for one in counts) if told else None,
                "troubles": sorted({f"{one['state']}: {one['why']}" for one in wrong}),
            }
        )
    return found


def section(run: Mapping[str, Any]) -> str:
    """Return what a run shows, as a section of a page in Markdown."""
    code = ", ".join(f"{name}: {origin}" for name, origin in run["code"].items())
    quick = ", the quick ones only" if run["quick"] else ""
    lines = [
        f"## {run['recipe']}\n",
        f"- {len(run['files'])} files{quick}, {run['seconds'] / 60:.0f} min",
        f"- overlay {run['overlay']}, Python {run['python']}",
        f"- tests: {run['tests']}\n- code: {code}",
        f"\n{changes(run['difference'])}\n",
    ]
    patches, never = [], []
    for one in run["coverage"]:
        here = one["patch"].rpartition("/")[2].partition(".")[0] in run["code"]
        said = f"applied in {one['applied']} of {one['processes']} processes"
        if one["applied"] and one["calls"] is None:
            said += ", does not count what it does"
        elif one["calls"]:
            changed = "looked at" if one["changed"] is None else f"changed {one['changed']} of"
            said += f", {changed} {one['calls']}"
        else:
            said += ", had nothing to do: nothing is shown of it"
        if here and not one["applied"] and not one["troubles"]:
            never.append(f"`{one['patch']}`")
        elif here or one["applied"]:
            patches.append("; ".join((f"`{one['patch']}`: {said}", *map(_code, one["troubles"]))))
    patches += [f"NEVER applied, so nothing is shown of: {', '.join(never)}"] if never else []
    lines += _listed("Patches:", patches or ["none was in place: nothing is shown"])
    causes = Counter(run["excluded"].values()).most_common()
    lines += _listed("Files that are not run, by cause:", [f"{count}: {why}" for why, count in causes])
    return "\n".join(lines)


def changes(difference: Mapping[str, Any]) -> str:
    """Return what differs between two runs as text."""
    counts = ", ".join(f"{len(difference[kind])} {kind}" for kind in KINDS)
    lines = [f"{difference['passing']} pass in both, {counts}", ""]
    for kind, means in KINDS.items():
        found = [
            f"`{one['id']}`: {one['before']} -> {one['after']}, {_code(one['reason'])}"
            for one in difference[kind]
        ]
        if kind == "failing":  # often they are many, of a few reasons
            reasons = Counter(_code(one["reason"]) for one in difference[kind]).most_common()
            found = [f"{count}: {reason}" for reason, count in reasons[:_REASONS]]
            found += [f"and {len(reasons) - _REASONS} other reasons"] if len(reasons) > _REASONS else []
        lines += _listed(f"{kind.capitalize()} ({means}):", found)
    return "\n".join(lines).rstrip()


def _listed(title: str, points: Sequence[str]) -> list[str]:
    return [title, "", *(f"- {point}" for point in points), ""] if points else []


def _code(text: str) -> str:
    """Return a reason as code, so that nothing in it means anything in Markdown."""
    text = text.replace("`", "'").strip()
    return f"`{text if len(text) <= _WIDTH else text[: _WIDTH - 1] + '…'}`" if text else "no reason given"
