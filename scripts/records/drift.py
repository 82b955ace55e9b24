"""Drift: for how much of a year the tables knew what a patch met on the main branch of its upstream.

    ./scripts/matrix drift                      # every history that is named below and can be had
    ./scripts/matrix drift slime megatron@dev   # these alone
    ./scripts/matrix drift --days 182 --table frozen

A history is a project and a branch, `main` if none is said. SLIME_REPO, MEGATRON_REPO and VERL_REPO name the
repositories (or bundles) with them; nothing is checked out and nothing of an upstream imported. Each
first-parent commit of the days to --until is decided on as `overlay audit` decides on a checkout, by one of
three tables. `today` is hindsight: the table has sources from after a commit. `frozen` has the sources alone
that were out when the period began. `weekly` is that one, and each week a row of the branch's head for each
patch: a commit whose sites are those of the week's head is taken to be known.
"""

from __future__ import annotations

import argparse
import os
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from overlay.source.decide import decide
from overlay.source.registry import load_patches, tables
from overlay.source.table import TABLE_FILE, Row, Table, read
from overlay.verdict import LOUD
from progress import tracked
from records._drift_history import CommitTree, HistoryError, Repository
from sources import git_sources, releases
from sources.git_sources import UPSTREAMS, FetchError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from overlay.patch import Patch
    from overlay.verdict import Verdict
    from sources.releases import Release

HISTORIES = ("slime@main", "verl@main", "megatron@main", "megatron@dev")
DAY = 86400
PATCHES = Path(__file__).resolve().parents[2] / "patches"
TABLES = ("today", "frozen", "weekly")
#: How the tag of a release is named, by the name that a source has before its version.
_TAGS = {"slime": "{}", "verl": "v{}", "megatron-core": "core_v{}", "megatron": "{}"}


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


class Drift(NamedTuple):
    """What the history of a branch is to one patch."""

    stretches: list[Stretch]

    @property
    def quiet(self) -> float:
        """The share of time without a loud verdict."""
        whole = sum(one.days for one in self.stretches)
        return sum(one.days for one in self.stretches if one.verdict not in LOUD) / whole


def walk(  # noqa: PLR0913, PLR0917 -- what a history is decided on by
    repository: Repository,
    branch: str,
    paths: Sequence[str],
    patches: Iterable[Patch],
    period: tuple[int, int],
    table: Table,
    *,
    weekly: bool = False,
) -> dict[str, Drift]:
    """Return the drift of each patch over a period, as seconds since 1970. Raises `HistoryError`.

    With `weekly`, what the table does not know is known all the same where a patch finds the sites of the
    first commit of that week.
    """
    patches = list(patches)
    week, heads = -1, {}
    commits = list(repository.commits(repository.tip(branch), paths, *period))
    ends = [*(commit.time for commit in commits[1:]), period[1]]
    files: dict[str, str] = {}
    known: dict[str, tuple[dict[str, str], Verdict]] = {}
    found: dict[str, Drift] = {patch.id: Drift([]) for patch in patches}
    for commit, end in zip(commits, ends, strict=True):
        files.update(commit.changes)
        for path in [path for path, blob in commit.changes.items() if not blob]:
            del files[path]
        here = CommitTree(repository, files)
        if weekly and (commit.time - period[0]) // (7 * DAY) > week:
            week = (commit.time - period[0]) // (7 * DAY)
            heads = {patch.id: _state(patch, here) for patch in patches}
        for patch in patches:
            if patch.id not in known or not here.holds(known[patch.id][0]):
                tree = CommitTree(repository, files)
                known[patch.id] = tree.asked, decide(patch, tree, table)
            verdict = known[patch.id][1]
            if weekly and verdict.loud and _state(patch, here) == heads[patch.id]:
                _note(found[patch.id], "as-that-week", "", commit.name, (commit.time, end))
            else:
                reason = _brief(verdict) if verdict.loud else ""
                _note(found[patch.id], verdict.verdict, reason, commit.name, (commit.time, end))
    return found


def _state(patch: Patch, tree: CommitTree) -> list[str | None]:
    """Return the digests of all that a patch names in a source."""
    return [tree.digest(site) for target in patch.targets for site in target.sites()]


def out_by(repository: Repository, moment: int, table: Table, listed: Iterable[Release]) -> Table:
    """Return the rows of a table that are of sources whose commits or tags are no younger than a moment.

    Args:
        repository: Of one upstream. What a source has of other upstreams has no say.
        moment: Seconds since 1970.
        table: The table of that upstream.
        listed: The lines of the list of releases, which say what an image or a head is.

    """
    parts = {one.name: one.parts or (one.name.replace("==", " "),) for one in listed}

    def is_out(name: str) -> bool:
        pairs = [part.partition(" ") for part in parts.get(name, ())]
        refs = [_TAGS[kind].format(ref) for kind, _, ref in pairs if kind in _TAGS]
        times = [time for ref in refs if (time := repository.time_of(ref))]
        return bool(times) and max(times) <= moment

    rows = []
    for row in table.all:
        on = {digest: kept for digest, names in row.on.items() if (kept := [*filter(is_out, names)])}
        if on:
            rows.append(Row(**{**vars(row), "on": on}))
    return Table(rows)


def _note(drift: Drift, verdict: str, reason: str, commit: str, period: tuple[int, int]) -> None:
    """Add a commit to the drift of a patch."""
    last = drift.stretches[-1] if drift.stretches else None
    if last is not None and (last.verdict, last.reason) == (verdict, reason):
        drift.stretches[-1] = last._replace(end=period[1])
    else:
        drift.stretches.append(Stretch(verdict, reason, commit, *period))


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


def _date(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d")


def text(history: str, period: tuple[int, int], found: dict[str, Drift]) -> str:
    """Return what was found in a history: the shares, and below them what ended the quiet."""
    width = max(map(len, found))
    days = f"{_date(period[0])} to {_date(period[1] - 1)}"
    lines = [f"{history}, {days}", f"{'patch':{width}}   quiet  applies"]
    for name, drift in found.items():
        whole = sum(one.days for one in drift.stretches)
        applies = sum(one.days for one in drift.stretches if one.verdict == "apply") / whole
        lines.append(f"{name:{width}}  {drift.quiet:6.1%}  {applies:7.1%}")
    quiet = sum(drift.quiet for drift in found.values()) / len(found)
    lines.append(f"{'all of them':{width}}  {quiet:6.1%}")
    lines += ["", f"{'loud':{width}}  from        to          commit     why"]
    lines += [
        f"{name:{width}}  {_date(one.start)}  {_date(one.end)}  {one.commit[:9]}  {one.reason}"
        for name, drift in found.items()
        for one in drift.stretches
        if one.verdict in LOUD
    ]
    return "\n".join(lines)


def measured(history: str, options: argparse.Namespace) -> str:
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
        known: Table = (
            tables()
            if options.table == "today"
            else out_by(
                repository, period[0], Table(read(str(PATCHES / project / TABLE_FILE))), releases.read()
            )
        )
        weekly = options.table == "weekly"
        found = walk(repository, branch or "main", paths, patches, period, known, weekly=weekly)
    finally:
        repository.close()
    return text(history, period, found)


def parsed(arguments: list[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="matrix drift", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("histories", nargs="*", help=f"project[@branch]; default: {' '.join(HISTORIES)}")
    parser.add_argument("--until", default="2026-08-22", metavar="DATE", help="last day, as 2026-08-22")
    parser.add_argument("--days", type=int, default=365, metavar="N", help="days up to that one")
    parser.add_argument("--table", choices=TABLES, default="today", help="what is known, see above")
    parser.add_argument("--repo", default="", metavar="DIR", help="repository or bundle, of one history")
    parser.add_argument("--patch", default="", metavar="TEXT", help="patches whose ids contain it")
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


def main(arguments: list[str]) -> int:
    """Print the figures; 2 if a history cannot be read."""
    options = parsed(arguments)
    try:
        found = [measured(history, options) for history in tracked(options.histories)]
    except (FetchError, HistoryError) as error:
        print(f"drift: {error}", file=sys.stderr)
        return 2
    print("\n\n".join(found))
    return 0
