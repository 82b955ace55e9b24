"""Write what each patch was tested on: a table beside the patches of each project, `patches/*/tested.json`.

    ./scripts/matrix tested                     # look at every release, and print what differs
    ./scripts/matrix tested verl.moe-aux-scale  # at this patch alone
    ./scripts/matrix tested --write             # and write the tables
    ./scripts/matrix tested --write --judged    # with replaced sites of which a person has judged the change

`overlay/deciding/table.py` says what a table is. The verdicts are the engine's, by the shapes in the patches;
that a contract passed is what `compat/support.json` has recorded. Refused, and not written, is

- a row that applies to a replaced site that no row of that patch had before, but with `--judged`: a contract
  can pass while a change of upstream's is undone;
- what contradicts itself: two rows that say different things of equal files, or different quiet things of
  equal sites. A fix that lies elsewhere than in what the patch names is to be named there.

Exit status 1 if something differs that is not written, or is refused.
"""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import json
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overlay.catalogue.registry import load_patches
from overlay.deciding.decide import decide_target, version_of
from overlay.deciding.table import NAME, Row, Table, files_digest, named, rows_of
from overlay.patch import Absent, Calls, Known, Present
from overlay.reading.source import InstalledTree
from overlay.verdict import LOUD
from records import support
from sources import releases

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from overlay.patch import Patch, Target
    from overlay.verdict import TargetVerdict
    from sources.releases import Release

    #: What is kept of a source.
    Source = dict[str, Any]
    #: A patch and a project of it.
    About = tuple[Patch, Target]

PATCHES = Path(__file__).resolve().parents[2] / "patches"
PASSED = "the contract passes with the patch"
UNTRIED = "read: its contract was not run with this project alone"


def file_of(project: str) -> Path:
    """Return the file of the patches of a project."""
    return PATCHES / project / NAME


def contract_digest(patch: str) -> str:
    """Return the digest of the contract of a patch, empty if it has none."""
    project, _, name = patch.partition(".")
    folder = PATCHES / project / name.replace("-", "_")
    files = sorted([*folder.glob("contract.py"), *folder.glob("contract/*.py")])
    total = hashlib.sha256(b"".join(path.read_bytes() for path in files))
    return total.hexdigest()[:12] if files else ""


def row_of(about: About, release: str, tree: InstalledTree, check: str | None) -> Row | None:
    """Return what is found on a release, `None` if the project is not in it.

    Args:
        about: The patch, and which of its projects.
        release: The name of the release.
        tree: Where it lies.
        check: What is recorded of the contract there, `None` if nothing is.

    """
    patch, target = about
    found = decide_target(patch, target, tree)
    if found.verdict == "not-installed":
        return None
    row = Row(
        patch=patch.id,
        target=target.project.name,
        verdict=found.verdict,
        variant=found.variant,
        evidence=found.reason.replace(f"{found.project} {found.version}", f"this {found.project}"),
        contract=contract_digest(patch.id),
        on={files_digest(target, tree): [release]},
    )
    if found.verdict in LOUD:
        return row
    if found.verdict != "apply":
        return row.replace(sites={site: tree.digest(site) for site in named(target)})
    evidence = {None: UNTRIED, "passed": PASSED}.get(check, f"the contract: {check}")
    imported = _imported(target, found, tree)
    return row.replace(evidence=evidence, sites=_sites(target, found, tree), imported=imported)


def _sites(target: Target, found: TargetVerdict, tree: InstalledTree) -> dict[str, str | bool | None]:
    """Return what was found at the sites of the variant that applies, and what tells it from others."""
    variant = next(one for one in target.variants if one.name == found.variant)
    sites: dict[str, str | bool | None] = {}
    for condition, finding in zip(variant.shape, found.findings, strict=True):
        if isinstance(condition, Calls):
            sites[condition.site] = f"calls {condition.callee}{' last' if condition.last else ''}"
        elif isinstance(condition, (Absent, Present)):
            sites[condition.site] = True if isinstance(condition, Present) else None
        else:
            sites[condition.site] = finding.digest
    telling = {item.site for one in target.variants for item in one.replacements}
    # Where upstream has mended it: as long as that is as it was, it has not.
    mended = [one for variant in target.variants if variant.verdict != "apply" for one in variant.shape]
    telling |= {one.site for one in mended if isinstance(one, Known)}
    for site in named(target):
        if site not in sites and (site in telling or not tree.has(site)):
            sites[site] = tree.digest(site)
    return sites


def _imported(target: Target, found: TargetVerdict, tree: InstalledTree) -> dict[str, str]:
    """Return where the replaced names come from that their module imports, as far as the patch names it."""
    variant = next(one for one in target.variants if one.name == found.variant)
    ours = {site.partition(":")[0] for site in named(target)}
    chains = [tree.chain(item.site) for item in variant.replacements if not item.new]
    hops = [hop for chain in chains for hop in pairwise(chain)]
    return {site: origin for site, origin in hops if site.partition(":")[0] in ours}


def alike(rows: Iterable[Row]) -> list[Row]:
    """Return rows with one evidence for equal files: what was run on them, if it was run on any."""
    best: dict[tuple[str, ...], str] = {}
    found = [((row.patch, row.target, row.means, *row.on), row) for row in rows]
    for key, row in found:
        if best.get(key) != PASSED:
            best[key] = row.evidence
    return [row.replace(evidence=best[key]) for key, row in found]


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
        found[key] = row.replace(on=on, date=min(dates, default=""))
    return sorted(found.values(), key=lambda row: (row.patch, row.target, order.index(_sources(row)[0])))


def _sources(row: Row) -> list[str]:
    return [name for names in row.on.values() for name in names]


def contradictions(
    rows: Sequence[Row], abouts: Iterable[About], trees: dict[str, InstalledTree]
) -> list[str]:
    """Return where rows say different quiet things of one source, by its files or by its sites."""
    said = []
    for patch, target in abouts:
        ours = [row for row in rows if (row.patch, row.target) == (patch.id, target.project.name)]
        table = Table(ours)
        by_files: dict[str, list[Row]] = {}
        for row in ours:
            for digest, names in row.on.items():
                by_files.setdefault(digest, []).append(row)
                others = [] if row.verdict in LOUD else table.fitting(patch, target, trees[names[0]])
                said += [f"{_told(row)}, and by its sites {_told(one)}" for one in _against(row, others)]
        said += [
            f"{_told(row)}, and of equal files {_told(one)}"
            for row, *others in by_files.values()
            for one in _against(row, others)
        ]
    return said


def _against(row: Row, others: Iterable[Row]) -> list[Row]:
    return [one for one in others if one.means != row.means]


def _told(row: Row) -> str:
    return f"{row.patch} on {_sources(row)[0]} is {_word(row)}"


def _word(row: Row) -> str:
    return f"{row.verdict} {row.variant}".strip()


def text_of(sources: dict[str, Source], rows: Iterable[Row]) -> str:
    """Return a file: a line for each source and each row. What a row has not is left out."""
    said = [f"  {json.dumps(name)}: {json.dumps(what)}" for name, what in sources.items()]
    lines = [json.dumps({key: value for key, value in row.to_dict().items() if value}) for row in rows]
    return '{{"sources": {{\n{}\n}},\n"rows": [\n{}\n]}}\n'.format(",\n".join(said), ",\n".join(lines))


def difference(old: Iterable[Row], new: Iterable[Row]) -> list[str]:
    """Return a line for each source of which a row says something else than before, or nothing any more."""
    before, now = _by_source(old), _by_source(new)
    lines = []
    for key in sorted({*before, *now}):
        then, here = before.get(key), now.get(key)
        if then != here:
            sign = "+" if then is None else "-" if here is None else "*"
            shown = [_shown(one) for one in (then, here) if one is not None]
            lines.append(f"{sign} {' '.join(key)}: {' -> '.join(shown)}")
    return lines


def _by_source(rows: Iterable[Row]) -> dict[tuple[str, str, str], Row]:
    return {
        (row.patch, row.target, name): row.replace(on={digest: []}, date="")
        for row in rows
        for digest, names in row.on.items()
        for name in names
    }


def _shown(row: Row) -> str:
    sites = " ".join(str(said) for said in row.sites.values())
    return f"{_word(row)} [{sites}] {row.evidence}"


def unjudged(old: Iterable[Row], new: Iterable[Row], abouts: Iterable[About]) -> list[str]:
    """Return the replaced sites of rows that apply which no row of that patch had, if it had any."""
    replaced = {
        (patch.id, target.project.name, item.site)
        for patch, target in abouts
        for variant in target.variants
        for item in variant.replacements
    }
    seen: dict[tuple[str, str], set[object]] = {}
    for row in old:
        if row.verdict == "apply":
            seen.setdefault((row.patch, row.target), set()).update(row.sites.items())
    return [
        f"{row.patch} on {', '.join(_sources(row))}: {site} is {said}, which nobody has judged"
        for row in new
        if row.verdict == "apply" and (row.patch, row.target) in seen
        for site, said in row.sites.items()
        if (row.patch, row.target, site) in replaced and (site, said) not in seen[row.patch, row.target]
    ]


def looked_at(
    abouts: Sequence[About], missing: dict[str, str]
) -> tuple[list[Row], dict[str, Source], dict[str, InstalledTree]]:
    """Return a row for each source and target, what the sources are, and their trees."""
    record = support.recorded()
    rows, sources, trees = [], {}, {}
    projects = {target.project for patch in load_patches().values() for target in patch.targets}
    for release, folder in releases.available(releases.read(), missing):
        tree = trees[release.name] = InstalledTree(str(folder))
        versions = {one.name: version_of(one, tree) for one in projects if tree.has(one.marker)}
        sources[release.name] = _source(release, versions)
        for patch, target in abouts:
            check = record.get(release.name, {}).get(patch.id, {}).get("check")
            row = row_of((patch, target), release.name, tree, check)
            rows += [row] if row is not None else []
        tree.let_go()
    return rows, sources, trees


def _source(release: Release, versions: dict[str, str]) -> Source:
    parts = {"is": " + ".join(release.parts)} if release.parts else {}
    return {**parts, "versions": dict(sorted(versions.items()))}


def read(path: Path) -> tuple[dict[str, Source], list[Row]]:
    """Return a file, nothing if it is not there."""
    if not path.exists():
        return {}, []
    sources: dict[str, Source] = json.loads(path.read_text(encoding="utf-8"))["sources"]
    return sources, rows_of(str(path))


def main(arguments: list[str]) -> int:
    """Print what differs, and write it if asked to."""
    parser = argparse.ArgumentParser(
        prog="scripts/matrix tested", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("patch", nargs="*", metavar="ID", help="look at these patches alone")
    parser.add_argument("--write", action="store_true", help="write the tables")
    parser.add_argument(
        "--judged", action="store_true", help="a person has judged what is new at replaced sites"
    )
    options = parser.parse_args(arguments)
    patches = load_patches()
    if wrong := sorted({*options.patch} - {*patches}):
        parser.error(f"there is no patch {', '.join(wrong)}")
    abouts = [
        (patch, target)
        for patch in patches.values()
        if patch.id in (options.patch or patches)
        for target in patch.targets
    ]
    order = [release.name for release in releases.read()]
    missing: dict[str, str] = {}
    found, sources, trees = looked_at(abouts, missing)
    refused = []
    status = 0
    for project in sorted({patch.id.partition(".")[0] for patch, _ in abouts}):
        ours = [about for about in abouts if about[0].id.startswith(f"{project}.")]
        mine = {patch.id for patch, _ in ours}
        known, before = read(file_of(project))
        old = [row for row in before if row.patch in patches]  # one that is gone has no rows
        kept = [row for row in old if row.patch not in mine] + [
            part for row in old if row.patch in mine for part in _only(row, missing)
        ]
        today = dt.datetime.now(dt.timezone.utc).date().isoformat()
        dates = {_undated(row): row.date for row in old}
        fresh = together(alike(row for row in found if row.patch in mine), order)
        new = together([*kept, *(row.replace(date=dates.get(_undated(row), today)) for row in fresh)], order)
        lines = difference(before, new)
        refused += [] if options.judged else unjudged(old, new, ours)
        refused += contradictions(new, ours, trees) if not missing else []
        for line in lines:
            print(line)
        said = {name for row in new for name in _sources(row)}
        listed = {
            name: {**sources.get(name, known.get(name, {})), "date": known.get(name, {}).get("date", today)}
            for name in order
            if name in said
        }
        text = text_of(listed, new)
        differs = not file_of(project).exists() or file_of(project).read_text(encoding="utf-8") != text
        if options.write and not refused:
            file_of(project).write_text(text, encoding="utf-8")
            print(f"{project}/{NAME}: {len(new)} rows of {len(said)} sources, {len(text) / 1000:.0f} kB")
        status |= int(differs and not options.write)
    for line in refused:
        print(f"refused: {line}")
    for name, why in missing.items():
        print(f"{name}: not fetched, and left as it is: {why}")
    return int(bool(status or refused))


def _undated(row: Row) -> str:
    return json.dumps(row.replace(on={}, date="").to_dict())


def _only(row: Row, names: Iterable[str]) -> list[Row]:
    """Return what a row says of some sources, nothing if that is none."""
    on = {digest: [name for name in said if name in names] for digest, said in row.on.items()}
    left = {digest: said for digest, said in on.items() if said}
    return [row.replace(on=left)] if left else []
