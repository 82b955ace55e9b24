"""Write docs/defects.md: which release has which known defect, as a heat map, and what each of them is.

    ./scripts/matrix defects            # write the page, from the tables
    ./scripts/matrix defects --check    # compare it, and exit with status 1 if it differs

The tables (`./scripts/matrix tested`) say which source has a defect: in rows of its own, or in those of the
patch that fixes it.
"""

from __future__ import annotations

import argparse
from itertools import groupby
from pathlib import Path

from overlay.defect import HARMS, READ, Defect
from overlay.patch import Patch
from overlay.source.known_defects import load_defects
from overlay.source.registry import load_patches
from overlay.source.table import Row
from overlay.verdict import APPLY
from records import _support_print
from records.patches import link
from sources import releases

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "defects.md"

#: What one column says, in one letter, and in words.
SIGNS = {
    "mended": ("+", "present, and a patch fixes it"),
    "open": ("X", "present, and no patch fixes it"),
    "unknown": ("?", "this source was not tested"),
    "not-needed": (".", "not in this release"),
    "": (" ", "the project is not in this image"),
}

#: Release to defect to what is said of it, a key of `SIGNS`.
Map = dict[str, dict[str, str]]

HEAD = """# Known defects

<!-- Written by `./scripts/matrix defects`: not to be edited. -->

What is known to be wrong in each release, image and head that overlay was tested on. For each project there
is a map of its releases (neighbours with the same defects share a column), and below it three lines on each
defect: what goes wrong, under which settings, and what helps. `overlay audit` says [which of these you
have](audit.md). Defects that nobody has found yet are not listed.

Unless a defect says otherwise, the contract of its patch measures it: `overlay prove PATCH` fails
without the patch.
"""


def heat() -> Map:
    """Return what the tables say of all defects."""
    patches = load_patches()
    rows = _support_print.rows()
    said = {(row.patch, row.target, name): row for row in rows for name in row.sources()}
    there = {(target, name) for _, target, name in said}
    return {
        name: {
            defect.id: _state(defect, said.get((_asked(defect), *here)), cells)
            for defect in load_defects(patches).values()
            if (here := (defect.project.name, name)) in there
        }
        for name, cells in _support_print.recorded().items()
    }


def _asked(defect: Defect) -> str:
    return defect.patch if follows(defect) else defect.id


def follows(defect: Defect) -> bool:
    """Return whether a defect is in the sources to which its patch applies."""
    return not defect.sites


def _state(defect: Defect, row: Row | None, cells: dict[str, str]) -> str:
    if row is None or row.loud:
        return "unknown"
    if row.verdict != APPLY or (defect.only and row.variant not in defect.only):
        return "not-needed"
    return "mended" if cells.get(defect.patch) == APPLY else "open"


def page() -> str:
    """Return the page."""
    patches = load_patches()
    defects = load_defects(patches)
    found = heat()
    listed = [release for release in releases.read() if release.name in found]
    harms = [f"| {harm} | {words} |" for harm, words in HARMS.items()]
    signs = [f"{sign}  {words}" for sign, words in SIGNS.values()]
    parts = [HEAD, "| harm | meaning |", "|---|---|", *harms, "", "```text", *signs, "```", ""]
    for project in dict.fromkeys(defect.project.name for defect in defects.values()):
        ours = [defect for defect in defects.values() if defect.project.name == project]
        ours.sort(key=lambda one: (list(HARMS).index(one.harm), one.id))
        rows = [one for one in listed if any(defect.id in found[one.name] for defect in ours)]
        parts += [f"## {project}", "", "```text", *_table(ours, rows, found), "```", ""]
        for harm in HARMS:
            if members := [defect for defect in ours if defect.harm == harm]:
                said = [_entry(defect, patches) for defect in members]
                parts += [f"### {project}: {harm}", "", *said, ""]
    return "\n".join(parts)


def _table(defects: list[Defect], rows: list[releases.Release], found: Map) -> list[str]:
    """Return a line for each defect, and a column of one character for neighbours that have the same ones."""
    width = max(len(defect.id) for defect in defects)
    harm = max(map(len, HARMS))
    names, columns = [], []
    for signs, group in groupby(
        (one.name for one in rows),
        lambda name: "".join(SIGNS[found[name].get(defect.id, "")][0] for defect in defects),
    ):
        names.append(_support_print.span([*group]))
        columns.append(signs)
    lines = _support_print.staircase(names, "", harm + 2 + width)
    for defect, cells in zip(defects, zip(*columns, strict=True), strict=True):
        lines.append(f"{defect.harm:<{harm}}  {defect.id:<{width}}  {''.join(cells)}".rstrip())
    return lines


def _entry(defect: Defect, patches: dict[str, Patch]) -> str:
    """Return the three lines on one defect."""
    fixes = []
    if defect.patch:
        opt_in = " (opt-in)" if patches[defect.patch].opt_in else ""
        fixes.append(f"[`{defect.patch}`](patches.md#{defect.patch.replace('.', '')}){opt_in}")
    if defect.way_out:
        fixes.append(f"{defect.way_out} ({f'tried by `{defect.tried}`' if defect.tried else 'untested'})")
    if defect.fixed:
        fixes.append(f"{defect.project.name} {defect.fixed}")
    last = f"  *Fix:* {'; '.join(fixes) or 'none is known'}."
    if defect.upstream != (patches[defect.patch].upstream if defect.patch else ()):
        last += f" *Upstream:* {', '.join(map(link, defect.upstream))}."
    if defect.shown == READ:
        last += " Read in the source, and not run."
    elif not defect.shown.startswith("overlay prove"):
        last += f" *Measured by* `{defect.shown}`."
    return "<br>\n".join([f"- **`{defect.id}`**: {defect.summary}", f"  *When:* {defect.met}", last])


def main(arguments: list[str]) -> int:
    """Write the page, or compare it with the tables."""
    parser = argparse.ArgumentParser(description="Write docs/defects.md: which release has what.")
    parser.add_argument("--check", action="store_true", help="write nothing, and fail if the page differs")
    if parser.parse_args(arguments).check:
        return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
    return 0
