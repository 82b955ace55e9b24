"""Write docs/defects.md: which release has which known defect, as a heat map, and what each of them is.

    ./scripts/matrix defects            # audit every release anew, and write the record and the page
    ./scripts/matrix defects --check    # compare the page with the records, and fetch nothing

A defect that leaves its sources to the patch that mends it stands in the support matrix already, in
`compat/support.json`; the record of the others is `compat/defects.json`. Exit status 1 with `--check` if the
page is not what the records say.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from overlay.auditing.audit import make_audit
from overlay.catalogue.known_defects import load_defects
from overlay.catalogue.registry import load_patches
from overlay.defect import HARMS, READ
from overlay.enabling.engine import Engine
from overlay.reading.source import InstalledTree
from records import _record, support
from records.patches import link
from sources import releases

if TYPE_CHECKING:
    from collections.abc import Iterable

    from overlay.defect import Defect
    from overlay.patch import Patch

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "defects.md"
RECORD = support.RECORD.with_name("defects.json")

#: What one column says, in one letter, and in words.
SIGNS = {
    "mended": ("+", "present, and a patch mends it"),
    "open": ("X", "present, and no patch mends it"),
    "unknown": ("?", "the source is there and not known"),
    "fixed": (".", "fixed upstream"),
    "absent": ("-", "the release does not have the code that is wrong"),
    "": (" ", "not looked at"),
}
_OF_VERDICTS = {"apply": "mended", "fixed-upstream": "fixed", "superseded": "fixed", "not-affected": "absent"}

#: Release to defect to what is said of it, a key of `SIGNS`.
Map = dict[str, dict[str, str]]

HEAD = """# Known defects

<!-- Written by `./scripts/matrix defects`: not to be edited. -->

What is known to be wrong in the releases of the support matrix ([what patches do there](support.md)): by
release, and below it in words. `overlay audit` says it of what is installed, by its source, and with
`--settings FILE` which of it the settings of a job meet ([how](audit.md)). A defect that is not here may be
there all the same.
"""


def recorded() -> Map:
    """Return the record, nothing if there is none."""
    found: Map = _record.read(RECORD)
    return found


def follows(defect: Defect, patches: dict[str, Patch]) -> bool:
    """Return whether the support matrix has all that there is to say of a defect."""
    if not defect.patch or defect.variants or defect.only:
        return False
    return patches[defect.patch].targets[0].project == defect.project


def heat() -> Map:
    """Return what the two records say of all defects."""
    patches = load_patches()
    defects = load_defects(patches)
    matrix, own = support.recorded(), recorded()
    found: Map = {}
    for name, row in matrix.items():
        cells = found[name] = {}
        for defect in defects.values():
            if not follows(defect, patches):
                state = own.get(name, {}).get(defect.id, "")
            else:
                verdict = row.get(defect.patch, {}).get("verdict", "")
                state = _OF_VERDICTS.get(verdict, "unknown" if verdict else "")
            if state:
                cells[defect.id] = state
    return found


def measured(folder: Path) -> dict[str, str]:
    """Return what an audit of a folder says of the defects that the support matrix does not have."""
    engine, tree = Engine(), InstalledTree(str(folder))
    audit = make_audit(engine, engine.plan_each(tree), tree)
    patches = engine.known()
    return {
        one.defect: one.state
        for one in sorted(audit.findings, key=lambda one: one.defect)
        if not follows(audit.defects[one.defect], patches)
    }


def page() -> str:
    """Return the page."""
    patches = load_patches()
    defects = load_defects(patches)
    found = heat()
    listed = [release for release in releases.read(support.LIST) if release.name in found]
    parts = [HEAD, "```text", *(f"{sign}  {words}" for sign, words in SIGNS.values()), "```", ""]
    for project in dict.fromkeys(defect.project.name for defect in defects.values()):
        ours = _sorted(defect for defect in defects.values() if defect.project.name == project)
        rows = [one for one in listed if any(defect.id in found[one.name] for defect in ours)]
        parts += [f"## {project}", "", "```text", *_table(ours, rows, found), "```", ""]
        parts += [_section(defect, patches) for defect in ours]
    return "\n".join(parts)


def _sorted(defects: Iterable[Defect]) -> list[Defect]:
    worst = list(HARMS)
    return sorted(defects, key=lambda one: (worst.index(one.harm), one.id))


def _table(defects: list[Defect], rows: list[releases.Release], found: Map) -> list[str]:
    """Return a line for each defect, and a column of one character for each release, named above it."""
    names = [one.name for one in rows]
    width = max(len(defect.id) for defect in defects)
    harm = max(map(len, HARMS))
    lines = []
    for place, name in enumerate(names):
        bars = "|" * place
        lines.append(f"{'':{harm + 2 + width + 2}}{bars}{name}".rstrip())
    for defect in defects:
        cells = "".join(SIGNS[found[name].get(defect.id, "")][0] for name in names)
        lines.append(f"{defect.harm:<{harm}}  {defect.id:<{width}}  {cells}".rstrip())
    return lines


def _section(defect: Defect, patches: dict[str, Patch]) -> str:
    read = "read in the source; no run has shown it"
    shown = read if defect.shown == READ else f"measured by `{defect.shown}`"
    facts = [
        f"- {defect.harm}: {HARMS[defect.harm]}",
        f"- met under: {defect.met}",
        f"- upstream: {', '.join(map(link, defect.upstream)) or 'not reported'}"
        + (f"; fixed in {defect.project.name} {defect.fixed}" if defect.fixed else "; fixed in no release"),
        f"- shown: {shown}",
    ]
    if defect.patch:
        named = ", which is opt-in" if patches[defect.patch].opt_in else ""
        facts.append(f"- mended by [`{defect.patch}`](patches.md#{defect.patch.replace('.', '')}){named}")
    else:
        facts.append("- mended by no patch")
    if defect.way_out:
        tried = f"tried by `{defect.tried}`" if defect.tried else "not tried"
        facts.append(f"- way out: {defect.way_out} ({tried})")
    elif not defect.patch:
        facts.append(f"- way out: {'the release with the fix' if defect.fixed else 'none is known'}")
    return "\n".join([f"### `{defect.id}`", "", defect.summary, "", *facts, ""])


def main(arguments: list[str]) -> int:
    """Write the record and the page, or compare the page with the records."""
    parser = argparse.ArgumentParser(description="Write docs/defects.md: which release has what.")
    parser.add_argument("only", nargs="*", metavar="RELEASE", help="audit these alone (default: all listed)")
    parser.add_argument("--check", action="store_true", help="audit nothing, and fail if the page differs")
    parser.add_argument("--page", action="store_true", help="audit nothing, and write the page")
    options = parser.parse_args(arguments)
    if options.check:
        return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page())
    if not options.page:
        listed = {release.name: release for release in releases.read(support.LIST)}
        unknown = sorted(set(options.only) - listed.keys())
        if unknown:
            parser.error(f"{', '.join(unknown)}: not in {support.LIST.name}")
        record = recorded()
        missing: dict[str, str] = {}
        wanted = [listed[name] for name in options.only or listed]
        for release, folder in releases.available(wanted, missing):
            record[release.name] = measured(folder)
        for name, why in missing.items():
            print(f"{name}: not fetched, and left as it is recorded: {why}")
        record = {name: record[name] for name in listed if name in record}
        _record.write(RECORD, record, depth=2)
    PAGE.write_text(page(), encoding="utf-8")
    return 0
