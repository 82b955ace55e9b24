"""Drift: for how much of a year each patch knew what it met on the main branch of its upstream.

    ./scripts/matrix drift                      # every history that is named below and can be had
    ./scripts/matrix drift slime megatron@dev   # these alone
    ./scripts/matrix drift --contracts          # and run the contract on each source that a patch applies to
    ./scripts/matrix drift --write              # write the record, and docs/drift.md
    ./scripts/matrix drift --recorded           # print the record, and read no history

A history is a project and a branch, `main` if none is said. SLIME_REPO, MEGATRON_REPO and VERL_REPO name the
repositories (or bundles) with them; nothing is checked out and nothing of an upstream imported, but for the
contracts. Each first-parent commit of the twelve months to --until is decided on as `overlay audit` decides
on a checkout. Exit status 1 if a contract does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from overlay.catalogue.registry import load_patches
from overlay.deciding.decide import decide
from overlay.verdict import LOUD
from progress import tracked
from records import _drift_checks, _record, figures
from records._drift_history import CommitTree, HistoryError, Repository
from sources import git_sources
from sources.git_sources import UPSTREAMS, FetchError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from overlay.patch import Patch
    from overlay.verdict import Verdict

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "docs" / "drift.json"
PAGE = "docs/drift.md"
HISTORIES = ("slime@main", "verl@main", "megatron@main", "megatron@dev")
DAY = 86400


class Stretch(NamedTuple):
    """Commits in a row with one verdict of one patch, for one reason."""

    verdict: str
    reason: str
    #: The first of them, and when the branch got there.
    commit: str
    start: int
    #: When another verdict began, or the period ended.
    end: int

    @property
    def days(self) -> float:
        """How long it lasted."""
        return (self.end - self.start) / DAY


class Applied(NamedTuple):
    """A source that a patch applies to: the digests it is known by, and the first commit that has it."""

    commit: str
    digests: tuple[tuple[str, str], ...]


class Drift(NamedTuple):
    """What the history of a branch is to one patch."""

    stretches: list[Stretch]
    sources: list[Applied]

    @property
    def quiet(self) -> float:
        """The share of time without a loud verdict."""
        whole = sum(one.days for one in self.stretches)
        return sum(one.days for one in self.stretches if one.verdict not in LOUD) / whole


def walk(
    repository: Repository,
    branch: str,
    paths: Sequence[str],
    patches: Iterable[Patch],
    period: tuple[int, int],
) -> dict[str, Drift]:
    """Return the drift of each patch over a period, as seconds since 1970. Raises `HistoryError`."""
    patches = list(patches)
    commits = list(repository.commits(repository.tip(branch), paths, *period))
    ends = [*(commit.time for commit in commits[1:]), period[1]]
    files: dict[str, str] = {}
    known: dict[str, tuple[dict[str, str], Verdict]] = {}
    found: dict[str, Drift] = {patch.id: Drift([], []) for patch in patches}
    for commit, end in zip(commits, ends, strict=True):
        files.update(commit.changes)
        for path in [path for path, blob in commit.changes.items() if not blob]:
            del files[path]
        here = CommitTree(repository, files)
        for patch in patches:
            if patch.id not in known or not here.holds(known[patch.id][0]):
                tree = CommitTree(repository, files)
                known[patch.id] = tree.asked, decide(patch, tree)
            _note(found[patch.id], known[patch.id][1], commit.name, commit.time, end)
    return found


def _note(drift: Drift, verdict: Verdict, commit: str, start: int, end: int) -> None:
    """Add a commit to the drift of a patch."""
    reason = _brief(verdict) if verdict.loud else ""
    last = drift.stretches[-1] if drift.stretches else None
    if last is not None and (last.verdict, last.reason) == (verdict.verdict, reason):
        drift.stretches[-1] = last._replace(end=end)
    else:
        drift.stretches.append(Stretch(verdict.verdict, reason, commit, start, end))
    if verdict.verdict == "apply":
        digests = tuple(
            (finding.site, finding.digest)
            for target in verdict.targets
            for finding in target.findings
            if finding.digest and finding.expects == "known"
        )
        if digests not in {one.digests for one in drift.sources}:
            drift.sources.append(Applied(commit, digests))


def _brief(verdict: Verdict) -> str:
    """Return the reason of a loud verdict in few words: what of the source is not known."""
    missed = [
        f"{finding.site.rpartition('.')[2] if ':' not in finding.site else finding.site.partition(':')[2]} "
        f"{finding.found}"
        for target in verdict.targets
        for finding in target.findings
        if not finding.holds
    ]
    if not missed:
        return verdict.reason
    return missed[0] + (f" (and {len(missed) - 1} more)" if len(missed) > 1 else "")


def described(period: tuple[int, int], found: dict[str, Drift], checks: dict[str, Any]) -> Any:
    """Return what is recorded of a history."""
    return {
        "from": _date(period[0]),
        "to": _date(period[1] - 1),
        "patches": {
            patch: {
                "quiet": round(100 * drift.quiet, 1),
                "applies": round(
                    100 * sum(one.days for one in drift.stretches if one.verdict == "apply")
                    / sum(one.days for one in drift.stretches), 1,
                ),
                "sources": len(drift.sources),
                **checks.get(patch, {}),
                "loud": [
                    {
                        "from": _date(one.start), "to": _date(one.end), "commit": one.commit[:9],
                        "verdict": one.verdict, "reason": one.reason,
                    }
                    for one in drift.stretches
                    if one.verdict in LOUD
                ],
            }
            for patch, drift in found.items()
        },
    }  # fmt: skip


def _date(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d")


def text(record: dict[str, Any]) -> str:
    """Return a record as it is printed."""
    parts = []
    for history, item in record.items():
        head = f"{history}, {item['from']} to {item['to']}"
        width = max(len(name) for name in item["patches"])
        lines = [head, f"{'patch':{width}}   quiet  applies  sources  run  wrong"]
        for name, cell in item["patches"].items():
            run, wrong = cell.get("run", "-"), len(cell["wrong"]) if "wrong" in cell else "-"
            lines.append(
                f"{name:{width}}  {cell['quiet']:5.1f}%  {cell['applies']:6.1f}%  {cell['sources']:7}"
                f"  {run:>3}  {wrong:>5}"
            )
        for name, cell in item["patches"].items():
            lines += [f"  wrong: {name}: {said}" for said in cell.get("wrong", ())]
        parts.append("\n".join(lines))
        loud = [
            f"{name:{width}}  {one['from']}  {one['to']}  {one['commit']}  {one['reason']}"
            for name, cell in item["patches"].items()
            for one in cell["loud"]
        ]
        if loud:
            parts.append("\n".join([f"{'loud':{width}}  from        to          commit     why", *loud]))
    return "\n\n".join(parts)


def measured(history: str, options: argparse.Namespace) -> Any:
    """Return what is found in one history. Raises `HistoryError` or `FetchError`."""
    project, _, branch = history.partition("@")
    if project not in UPSTREAMS:
        msg = f"{project!r} is no project with a history: {', '.join(UPSTREAMS)}"
        raise HistoryError(msg)
    if options.repo:
        os.environ[UPSTREAMS[project].variable] = options.repo
    folder = git_sources.repository(project)
    last = datetime.strptime(options.until, "%Y-%m-%d").replace(tzinfo=timezone.utc) + timedelta(days=1)
    period = int(last.timestamp()) - options.days * DAY, int(last.timestamp())
    patches = [
        patch for patch in load_patches().values()
        if patch.id.startswith(f"{project}.") and options.patch in patch.id
    ]  # fmt: skip
    paths = UPSTREAMS[project].paths
    repository = Repository(folder)
    try:
        found = walk(repository, branch or "main", paths, patches, period)
    finally:
        repository.close()
    checks = {}
    if options.contracts:
        sources = {
            patch: [(one.commit, one.digests) for one in drift.sources] for patch, drift in found.items()
        }
        checks = _drift_checks.run(folder, project, paths, sources, options.seed)
    return described(period, found, checks)


def parsed(arguments: list[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="matrix drift", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("histories", nargs="*", help=f"project[@branch]; default: {' '.join(HISTORIES)}")
    parser.add_argument("--until", default="2026-08-22", metavar="DATE", help="last day, as 2026-08-22")
    parser.add_argument("--days", type=int, default=365, metavar="N", help="days up to that one")
    parser.add_argument("--repo", default="", metavar="DIR", help="repository or bundle, of one history")
    parser.add_argument("--patch", default="", metavar="TEXT", help="patches whose ids contain it")
    parser.add_argument("--contracts", action="store_true", help="run the contract on each source")
    parser.add_argument("--seed", default="1", help="of what the contracts draw")
    parser.add_argument("--write", action="store_true", help=f"write the record, and {PAGE}")
    parser.add_argument("--recorded", action="store_true", help="print the record")
    options = parser.parse_args(arguments)
    options.histories = [name if "@" in name else f"{name}@main" for name in options.histories or HISTORIES]
    if options.repo and len(options.histories) != 1:
        parser.error("--repo is of one history: name it")
    try:
        datetime.strptime(options.until, "%Y-%m-%d")  # noqa: DTZ007 -- a day
    except ValueError:
        parser.error(f"--until {options.until!r} is no day such as 2026-08-22")
    if options.days < 1:
        parser.error(f"--days {options.days} is no period")
    return options


def recorded() -> dict[str, Any]:
    """Return the record, nothing if there is none."""
    found: dict[str, Any] = _record.read(RECORD)
    return found


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return the record with what was measured. What was not is as before, contracts included."""
    result = {name: new.get(name, old.get(name)) for name in dict.fromkeys((*old, *new))}
    for name, item in new.items():
        before = old.get(name, {}).get("patches", {})
        cells = {patch: dict(cell) for patch, cell in {**before, **item["patches"]}.items()}
        for patch, cell in cells.items():
            known = before.get(patch, {})
            if "run" not in cell and "run" in known and known["sources"] == cell["sources"]:
                cell.update({key: known[key] for key in ("run", "wrong")})
        result[name] = {**item, "patches": dict(sorted(cells.items()))}
    order = {name: place for place, name in enumerate(HISTORIES)}
    return dict(sorted(result.items(), key=lambda pair: order.get(pair[0], len(order))))


def main(arguments: list[str]) -> int:
    """Print the figures; 1 if a contract does not hold, 2 if a history cannot be read."""
    options = parsed(arguments)
    if options.recorded:
        print(text(recorded()))
        return 0
    try:
        found = {history: measured(history, options) for history in tracked(options.histories)}
    except (FetchError, HistoryError) as error:
        print(f"drift: {error}", file=sys.stderr)
        return 2
    print(text(found))
    if options.write:
        RECORD.write_text(json.dumps(merged(recorded(), found), indent=1) + "\n", encoding="utf-8")
        figures.main([PAGE])
    return int(any(cell.get("wrong") for item in found.values() for cell in item["patches"].values()))
