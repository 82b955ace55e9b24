"""Split the same rollouts with each release of slime, as released and with overlay.

    SLIME_REPO=~/slime ./scripts/bench splits

Releases that make the same of all rollouts share their rows. A rollout is a case of `rollouts` or
`schedules`; none is drawn anew.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from benches import _program
from checks import UPSTREAMS
from overlay.compat.slime_on_cpu.rollouts import Case, Split, cases, steps_of
from sources.fetch_source import fetch
from sources.git_sources import FetchError

BEFORE_0_3 = ("v0.1.0", "v0.2.0", "v0.2.1", "v0.2.2", "v0.2.3", "v0.2.4", "286750aa3")
SHOWN = {
    "slime#1951": "slime#1951",
    "slime#1838": "slime#1838",
    "slime#1839": "slime#1839",
    "7 with 4 pipeline stages": "PP 4, 7 needed",
    "7 in groups of 4": "VPP by 4, 7 needed",
    "fewer than a group": "VPP by 4, 3 needed",
    "no room to round up": "VPP by 4, 5 of 7",
    "odd samples, all full": "VPP by 2, 5 of 5",
}
#: Of the schedule's cases: 512 samples on 8 ranks.
LARGE = 8


def told(given: Case, ranks: list[Split]) -> str:
    """Return how many micro-batches a step has and the worst of them, or the error."""
    errors = [split["error"] for split in ranks if "error" in split]
    if errors:
        return f"{errors[0]} on {len(errors)} of {len(ranks)} ranks"
    limit = given["budget"] * given["context"]
    tokens = [
        (sum(lengths[index] for index in part), len(part))
        for rank, split in enumerate(ranks)
        if "steps" in split
        for lengths, parts in zip(steps_of(given, rank), split["steps"], strict=True)
        for part in parts
    ]
    over = [total for total, count in tokens if count > 1 and total > limit]
    empty = sum(not count for _, count in tokens)
    text = f"{len(ranks[0]['steps'][0])}"
    text += f", {len(over)} over, at most {max(over) / limit:.2f}" if over else ""
    return text + (f", {empty} empty" if empty else "")


def rows_before_0_3(revision: str) -> list[tuple[str, str, str]]:
    """Return for each rollout its name and what slime makes of it alone and with overlay."""
    found = run("slime_check.py", revision, "0", "0")
    rows = []
    for given, plain, ours in zip(
        cases("0", 0), found["plain"]["splits"], found["overlay"]["splits"], strict=True
    ):
        if given["name"] in SHOWN:
            rows.append((SHOWN[given["name"]], told(given, plain), told(given, ours)))
    return sorted(rows, key=lambda row: list(SHOWN.values()).index(row[0]))


def rows_of_0_3(revision: str) -> list[tuple[str, str, str]]:
    """Return the same for two steps of slime 0.3, and how much work the micro-batches are, over the mean."""
    found = run("slime_schedule_check.py", revision, "0")
    given = found["cases"][LARGE]
    flops = found["flops"][LARGE]
    rows = []
    for mode in ("by tokens", "by FLOPs"):
        if mode == "by FLOPs" and revision == "v0.3.0":
            continue
        texts = []
        for state in ("plain", "overlay"):
            parts = [part for step in found[state][mode][LARGE]["steps"] for rank in step for part in rank]
            tokens = [sum(given["lengths"][index] for index in part) for part in parts]
            over = [total for total in tokens if total > given["budget"]]
            most = f", {len(over)} over, at most {max(over) / given['budget']:.2f}" if over else ""
            work = [sum(flops[index] for index in part) * len(parts) / sum(flops) for part in parts]
            texts.append(f"{len(parts)}{most}, work {min(work):.2f} to {max(work):.2f}")
        rows.append((f"packed {mode}", *texts))
    return rows  # type: ignore[return-value]


def run(program: str, revision: str, *arguments: str) -> dict[str, Any]:
    """Return what a program of `scripts/checks/upstreams` finds on a revision."""
    release = fetch("slime", revision)
    return dict(_program.found(UPSTREAMS / program, *arguments, release=release, OVERLAY_LOG="off"))


def main(arguments: list[str]) -> int:
    """Print the tables; exit status 2 without a repository of slime."""
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args(arguments)
    alike: dict[tuple[tuple[str, str, str], ...], list[str]] = {}
    try:
        for revision in BEFORE_0_3:
            alike.setdefault(tuple(rows_before_0_3(revision)), []).append(revision)
        for revision in ("v0.3.0", "v0.3.1"):
            alike.setdefault(tuple(rows_of_0_3(revision)), []).append(revision)
    except FetchError as error:
        print(f"bench splits: {error}", file=sys.stderr)
        return 2
    print(
        "micro-batches of a step on a rank (0.3: of two steps on all); those over the budget, in parts of it"
    )
    for rows, revisions in alike.items():
        name = revisions[0] if len(revisions) == 1 else f"{revisions[0]} to {revisions[-1]}"
        print(f"\n{name}\n  {'rollout':<20}{'slime':<48}with overlay")
        for rollout, plain, ours in rows:
            print(f"  {rollout:<20}{plain:<48}{ours}")
    return 0
