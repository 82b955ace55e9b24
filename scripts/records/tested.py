"""Write what each patch was tested on: a table beside the patches of each project, `patches/*/tested.json`.

    ./scripts/matrix tested                     # run what is not in the tables, or of other code; print it
    ./scripts/matrix tested verl.moe-aux-scale  # of this patch alone
    ./scripts/matrix tested --write             # and write the tables
    ./scripts/matrix tested ID --write --judged # with replaced sites of which somebody has read the change
    ./scripts/matrix tested ID --on SOURCE --read not-needed --why SENTENCE --write
                                                # what somebody has read there, and no contract shows
    ./scripts/matrix tested --recorded          # print the tables, and fetch nothing

`overlay/source/table.py` says what a table is, `overlay/desk/prove/rows.py` how a row comes about: the
contract is run on a source for each row, on upstream alone and with the patch. Sources that are alike in all
that a patch asks about share a row. A new line in `compat/releases.txt` needs this command and nothing else.

Refused, and not written, is a row that applies where a replaced site is new, without `--judged`, as a
contract can pass while a change of upstream's is undone; and two rows that contradict each other.

Exit status 1 if something differs that is not written, is refused, or fails.
"""

from __future__ import annotations

import argparse
import ast
import datetime as dt
import difflib
import json
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from checks import SEED

from overlay.desk.prove.prove import HOLDS, STRICTLY, WRONG
from overlay.desk.prove.rows import File, Trial, text_of, trial, unjudged
from overlay.model.settings import ALONE
from overlay.patch import Patch
from overlay.source.decide import decide, version_of
from overlay.source.known_defects import as_patch, load_defects
from overlay.source.registry import contract_of, load_patches, of_code
from overlay.source.source import Tree
from overlay.source.table import TABLE_FILE, Row, Table, files_digest
from overlay.verdict import APPLY
from records import _support_print
from sources import fetch_release, releases
from sources.releases import Release
from tortures._run_contracts import ContractError, outcomes
from tortures._upstreams import BESIDE_MEGATRON

PATCHES = Path(__file__).resolve().parents[2] / "patches"
#: What Megatron imports from 0.18 on, and what stands beside a release that a contract is run on.
TRITON = "triton==3.3.1"
#: What a patch that serves one project alone is decided and run beside: the environment has it as well.
BESIDE = {"verl": BESIDE_MEGATRON}
TODAY = dt.datetime.now(dt.timezone.utc).date().isoformat()


class Source(NamedTuple):
    """A line of the list of releases, where it lies, and its text."""

    release: Release
    folder: Path
    tree: Tree

    @property
    def name(self) -> str:
        """Its name in the rows."""
        return self.release.name

    def tree_for(self, patch: Patch) -> Tree:
        """Return what a patch is decided on here: one that serves a project alone, beside that project."""
        served = patch.targets[0].serves
        if served not in BESIDE or self.release.is_image:
            return self.tree
        beside = releases.fetch(releases.Release(BESIDE[served]))
        return Tree([str(self.folder), str(beside)])


def file_of(project: str) -> Path:
    """Return the file of the patches of a project."""
    return PATCHES / project / TABLE_FILE


def read(project: str) -> File:
    """Return the table of a project, nothing in it if there is no file."""
    return File.read(str(file_of(project)))


def everything() -> dict[str, Patch]:
    """Return all patches, and what is decided on as a patch is: the defects with sources of their own."""
    patches = load_patches()
    defects = load_defects(patches).values()
    return {**patches, **{one.id: as_patch(one) for one in defects if one.sites}}


def run(source: Source, jobs: Sequence[tuple[str, str, Sequence[Row]]]) -> list[tuple[str, str]]:
    """Return the outcomes of contracts on a source.

    Args:
        source: What lies first on the path.
        jobs: A patch, `alone` or `strictly`, and the rows to try it with.

    """
    with tempfile.TemporaryDirectory() as folder:
        given = []
        for number, (patch, how, rows) in enumerate(jobs):
            path = Path(folder, f"{number}.json")
            path.write_text(text_of({}, rows))
            given.append((patch, "", "", how, str(path) if rows else ""))
        try:
            found = outcomes([source.folder], given, SEED) if given else []
            # A stand-in is enough in one process. Those that a contract starts need the real one.
            again = [place for place, (_, why) in enumerate(found) if "No module named 'triton'" in why]
            folders = [source.folder, fetch_release.fetch(TRITON)] if again else []
            more = outcomes(folders, [given[place] for place in again], SEED) if again else []
        except ContractError as error:
            return [("raises", str(error))] * len(given)
        return [dict(zip(again, more, strict=True)).get(place, one) for place, one in enumerate(found)]


def tried(source: Source, patches: Sequence[Patch], table: Table) -> tuple[list[Row], list[str]]:
    """Return the rows of patches that a table does not know on a source, and what else is to be said."""
    trials = [trial(patch, source.tree_for(patch), table, source.name) for patch in patches]
    rows = [row for one in trials for row in one.absent]
    by_id = {patch.id: patch for patch in patches}
    asked = [one for one in trials if one.alone and contract_of(one.patch) is not None]
    said = [_refused(one, source) for one in trials if not one.absent and one not in asked]
    alone = run(source, [(one.patch, ALONE, ()) for one in asked])
    left: list[Trial] = []
    for one, outcome in zip(asked, alone, strict=True):
        if outcome[0] == HOLDS:
            rows += one.alone
        elif one.choices:
            left.append(one)
        else:
            said.append(f"{_refused(one, source)}; its contract without the patch: {' '.join(outcome)}")
    while left:
        found = run(source, [(one.patch, STRICTLY, one.choices[0]) for one in left])
        again = []
        for one, outcome in zip(left, found, strict=True):
            if outcome[0] == HOLDS:
                rows += one.choices[0]
            elif one.choices[1:]:
                again.append(one.replace(choices=one.choices[1:]))
            else:
                said.append(f"{one.patch} on {source.name}: unknown: the contract {' '.join(outcome)}")
        left = again
    said += [
        f"refused: {row.patch} on {source.name}: {site} is new, and nobody has read it"
        for row in rows
        for site in unjudged([row], by_id[row.patch], table)
    ]
    return rows, said


def _refused(one: Trial, source: Source) -> str:
    return f"{one.patch} on {source.name}: unknown: {one.refused}"


def renewed(source: Source, rows: Sequence[Row]) -> tuple[list[Row], list[str]]:
    """Return rows that were of other code, run again on one of their sources, and what does not hold."""
    kept, said = [], []
    ours = [row for row in rows if contract_of(row.patch) is not None and row.shown != "absent"]
    found = run(source, [(row.patch, how, ()) for row in ours for how in _hows(row)])
    at = 0
    codes = {row.patch: of_code(row.patch) for row in ours}
    for row in ours:
        mine, at = found[at : at + len(_hows(row))], at + len(_hows(row))
        fresh = row.replace(code=codes[row.patch], date=TODAY)
        if row.verdict == APPLY and mine[1][0] == HOLDS and mine[0][0] != HOLDS:
            kept.append(fresh.replace(shown="passed"))
        elif row.verdict != APPLY and mine[0][0] == HOLDS:
            kept.append(fresh.replace(shown="alone"))
        elif row.verdict != APPLY and row.shown == "read":
            kept.append(fresh)
            if mine[0][0] == WRONG:  # it may be something else that the contract finds there, or may not
                heard = f"somebody has read that it is not needed, and its contract says: {mine[0][1]}"
                print(f"{row.patch} on {source.name}: {heard}", file=sys.stderr, flush=True)
        else:
            told = "; ".join(f"{how}: {' '.join(one)}" for how, one in zip(_hows(row), mine, strict=True))
            said.append(f"FAILS: {row.patch} on {source.name}, {row.means}: {told} (seed {SEED})")
    return kept, said


def _hows(row: Row) -> tuple[str, ...]:
    return (ALONE, STRICTLY) if row.verdict == APPLY else (ALONE,)


def together(rows: Iterable[Row], order: Sequence[str]) -> list[Row]:
    """Return rows, those that differ in their sources alone put together, in the order of a list."""
    found: dict[str, Row] = {}
    for row in rows:
        key = json.dumps(row.replace(on={}, date="").to_dict())
        before = found.get(key)
        on = {digest: [*names] for digest, names in (before.on if before else {}).items()}
        for digest, names in row.on.items():
            on[digest] = sorted({*on.get(digest, ()), *names}, key=order.index)
        dates = [one.date for one in (before, row) if one and one.date]
        found[key] = row.replace(on=on, date=max(dates, default=""))
    return sorted(found.values(), key=lambda row: (row.patch, row.target, order.index(row.sources()[0])))


def only(row: Row, names: Iterable[str]) -> list[Row]:
    """Return what a row says of some sources, nothing if that is none."""
    on = {digest: [name for name in said if name in names] for digest, said in row.on.items()}
    left = {digest: said for digest, said in on.items() if said}
    return [row.replace(on=left)] if left else []


def contradictions(rows: Sequence[Row], patches: Iterable[Patch], sources: dict[str, Source]) -> list[str]:
    """Return where rows say different things of one source, by its files or by its sites."""
    said = []
    for patch in patches:
        for target in patch.targets:
            ours = [row for row in rows if (row.patch, row.target) == (patch.id, target.project.name)]
            table = Table(ours)
            by_files: dict[str, Row] = {}
            for row in ours:
                for digest, names in row.on.items():
                    others = [by_files.setdefault(digest, row)]
                    if not row.loud and names[0] in sources:
                        others += table.fitting(patch, target, sources[names[0]].tree)
                    said += [
                        f"refused: {patch.id} on {names[0]}: {row.means}; as {one.sources()[0]}: {one.means}"
                        for one in others
                        if one.means != row.means
                    ]
    return said


def changes(patch: Patch, row: Row, table: Table, sources: dict[str, Source]) -> list[str]:
    """Return how replaced sites of a new row differ from the nearest source that the patch was tested on."""
    target = next(one for one in patch.targets if one.project.name == row.target)
    here = sources[row.sources()[0]]
    near = table.nearest(patch, target, here.tree)
    lines: list[str] = []
    if near is None:
        return lines
    for site in unjudged([row], patch, table):
        there = next((sources[name] for name in near.sources() if name in sources), None)
        if there is not None:
            texts = [[*map(ast.unparse, one.tree.nodes(one.tree.chain(site)[-1]))] for one in (there, here)]
            before, after = ("\n".join(text).splitlines() for text in texts)
            lines += difflib.unified_diff(before, after, f"{there.name} {site}", here.name, lineterm="", n=2)
    return lines


def difference(old: Iterable[Row], new: Iterable[Row]) -> list[str]:
    """Return a line for each source of which a row says something else than before, or nothing any more."""

    def by_source(rows: Iterable[Row]) -> dict[tuple[str, str, str], Row]:
        return {(row.patch, row.target, name): row for row in rows for name in row.sources()}

    before, now = by_source(old), by_source(new)
    lines = []
    for key in sorted({*before, *now}):
        then, here = before.get(key), now.get(key)
        shown = [f"{one.means} ({one.shown})" for one in (then, here) if one is not None]
        if len(shown) == 1 or shown[0] != shown[1]:
            sign = "*" if len(shown) > 1 else "-" if here is None else "+"
            lines.append(f"{sign} {' '.join(key)}: {' -> '.join(shown)}")
    return lines


def main(arguments: list[str]) -> int:
    """Run what is to be run, print what differs, and write it if asked to."""
    parser = argparse.ArgumentParser(
        prog="scripts/matrix tested", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("patch", nargs="*", metavar="ID", help="these patches, or defects, alone")
    parser.add_argument("--on", nargs="*", metavar="SOURCE", help="on these lines of the list alone")
    parser.add_argument("--write", action="store_true", help="write the tables")
    parser.add_argument("--again", action="store_true", help="run what the tables know as well")
    parser.add_argument("--judged", action="store_true", help="somebody has read the new replaced sites")
    parser.add_argument("--read", choices=(APPLY, "not-needed"), help="what somebody has read there")
    parser.add_argument("--why", default="", metavar="SENTENCE", help="the reason of --read")
    parser.add_argument("--recorded", action="store_true", help="print the tables, and fetch nothing")
    options = parser.parse_args(arguments)
    if options.recorded:
        print(_support_print.text())
        return 0
    known = everything()
    if wrong := sorted({*options.patch} - {*known}):
        parser.error(f"there is no patch and no defect {', '.join(wrong)}")
    if (options.judged or options.read) and not options.patch:
        parser.error("--judged and --read are of patches that are named")
    if options.read and not options.on:
        parser.error("--read is of sources that are named: --on SOURCE")
    listed = releases.read()
    order = [release.name for release in listed]
    if wrong := sorted({*(options.on or ())} - {*order}):
        parser.error(f"{', '.join(wrong)}: not in {releases.LIST.name}; a source is one line there")
    return _Writer(options, known, order).main(listed)


class _Writer:
    """One run of the command."""

    def __init__(self, options: argparse.Namespace, known: dict[str, Patch], order: list[str]) -> None:
        self._options, self._known, self._order = options, known, order
        self._asked = {name: known[name] for name in options.patch or known}
        self._old = {project: read(project) for project in sorted({name.partition(".")[0] for name in known})}
        # A patch that is gone has no rows, nor has a line of the list that is gone.
        self._rows = [
            part
            for file in self._old.values()
            for row in file.rows
            if row.patch in known
            for part in only(row, order)
        ]
        self._sources: dict[str, Source] = {}
        self._said: list[str] = []

    def main(self, listed: Sequence[Release]) -> int:
        missing: dict[str, str] = {}
        for release, folder in releases.available(listed, missing):
            self._sources[release.name] = Source(release, folder, Tree(str(folder)))
        wanted = [one for name, one in self._sources.items() if name in (self._options.on or self._order)]
        if self._options.read:
            self._rows += [row for source in wanted for row in self._read(source)]
        else:
            self._renew(wanted)
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(self._look_at, wanted))
        self._rows = together(self._rows, self._order)
        self._said += contradictions(self._rows, self._asked.values(), self._sources)
        status = self._write()
        for line in self._said:
            print(line)
        for name, why in missing.items():
            print(f"{name}: not fetched, and left as it is: {why}")
        return int(bool(status or self._said))

    def _table(self) -> Table:
        return Table(self._rows)

    def _renew(self, wanted: Sequence[Source]) -> None:
        """Run the rows of other code again, each on one of its sources."""
        codes = {name: of_code(name) for name in load_patches()}
        stale: dict[str, list[Row]] = {}
        for row in self._rows:
            names = [name for name in row.sources() if name in {source.name for source in wanted}]
            is_stale = self._options.again or row.code != codes.get(row.patch, row.code)
            if row.patch in self._asked and row.patch in codes and is_stale and names:
                alone = [name for name in names if not self._sources[name].release.is_image]
                stale.setdefault((alone or names)[-1], []).append(row)

        def renew(name: str) -> None:
            rows, said = renewed(self._sources[name], stale[name])
            absent = [row.replace(code=codes[row.patch]) for row in stale[name] if row.shown == "absent"]
            gone = {id(row) for row in stale[name]}
            self._rows = [row for row in self._rows if id(row) not in gone] + rows + absent
            self._said += said
            print(f"{name}: {len(rows)} of {len(stale[name])} rows hold", file=sys.stderr, flush=True)
            if self._options.write:
                self._write(quiet=True)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(renew, stale))

    def _look_at(self, source: Source) -> None:
        """Find what a source is to each patch that the table does not know there."""
        unknown = []
        for patch in self._asked.values():
            said = [row for row in self._rows if row.patch == patch.id and source.name in row.sources()]
            targets = {row.target: row for row in said}
            tree = source.tree_for(patch)
            verdict = decide(patch, tree, self._table())
            for target, here in zip(patch.targets, verdict.targets, strict=True):
                there = here.verdict != "not-installed" and source.tree.has(target.project.marker)
                if not there or target.project.name in targets:
                    continue
                row = self._table().find(patch, target, tree)
                if row is not None:  # it is alike
                    self._rows.append(row.replace(on={files_digest(target, tree): [source.name]}))
                elif here.verdict == "unknown-source" and patch not in unknown:
                    unknown.append(patch)
        rows, words = tried(source, [one for one in unknown if one.id in load_patches()], self._table())
        words += [
            f"{one.id} on {source.name}: unknown: {decide(one, source.tree, self._table()).reason}"
            for one in unknown
            if one.id not in load_patches()
        ]
        for row in rows:
            for line in changes(self._known[row.patch], row, self._table(), self._sources):
                print(line)
        refused = (
            {line.split()[1] for line in words if line.startswith("refused")}
            if not self._options.judged
            else set()
        )
        self._said += [line for line in words if not (self._options.judged and line.startswith("refused"))]
        self._rows += [row.replace(date=TODAY) for row in rows if row.patch not in refused]
        if self._options.write and rows:
            self._write(quiet=True)

    def _read(self, source: Source) -> list[Row]:
        """Return the rows of what somebody has read."""
        rows = []
        for patch in self._asked.values():
            target = patch.targets[0]
            found = trial(patch, source.tree, Table([]), source.name)
            chosen = found.choices[0] if self._options.read == APPLY and found.choices else found.alone
            chosen = chosen or found.absent  # of a defect, which replaces nothing
            self._rows = [
                part
                for row in self._rows
                for part in (
                    only(row, set(self._order) - {source.name})
                    if (row.patch, row.target) == (patch.id, target.project.name)
                    else [row]
                )
            ]
            rows += [
                row.replace(shown="read", evidence=self._options.why, verdict=self._options.read, date=TODAY)
                for row in chosen
            ]
        return rows

    def _write(self, *, quiet: bool = False) -> int:
        """Print what differs, and write it if asked to; return 1 if something differs that is not written."""
        status = 0
        for project, old in self._old.items():
            new = together(
                [row for row in [*self._rows] if row.patch.partition(".")[0] == project], self._order
            )
            if not quiet:
                print("\n".join(difference(old.rows, new)), end="\n" if difference(old.rows, new) else "")
            named = {name for row in new for name in row.sources()}
            sources = {
                name: old.sources.get(name) or self._source(name) for name in self._order if name in named
            }
            text = text_of(sources, new)
            differs = not file_of(project).exists() or file_of(project).read_text(encoding="utf-8") != text
            if differs and self._options.write:
                file_of(project).write_text(text, encoding="utf-8")
                size = f"{len(new)} rows of {len(named)} sources, {len(text) / 1000:.0f} kB"
                print(f"{project}/{TABLE_FILE}: {size}")
            status |= int(differs and not self._options.write)
        return status

    def _source(self, name: str) -> dict[str, Any]:
        """Return what is kept of a source."""
        source = self._sources[name]
        projects = {target.project for patch in self._known.values() for target in patch.targets}
        there = {one.name: version_of(one, source.tree) for one in projects if source.tree.has(one.marker)}
        parts = {"is": " + ".join(source.release.parts)} if source.release.parts else {}
        return {**parts, "versions": dict(sorted(there.items())), "date": TODAY}
