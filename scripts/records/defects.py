"""Write docs/defects.md: which release has which known defect, as a heat map, and what each of them is.

    ./scripts/matrix defects            # write the page, from the tables
    ./scripts/matrix defects --check    # compare it, and exit with status 1 if it differs

The tables (`./scripts/matrix tested`) say which source has a defect: in rows of its own, or in those of the
patch that mends it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from overlay.defect import HARMS, READ
from overlay.source.known_defects import load_defects
from overlay.source.registry import load_patches
from overlay.verdict import APPLY
from records import _support_print
from records.patches import link
from sources import releases

if TYPE_CHECKING:
    from collections.abc import Iterable

    from overlay.defect import Defect
    from overlay.patch import Patch
    from overlay.source.table import Row

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "defects.md"

#: What one column says, in one letter, and in words.
SIGNS = {
    "mended": ("+", "present, and a patch mends it"),
    "open": ("X", "present, and no patch mends it"),
    "unknown": ("?", "the source is there and not known"),
    "not-needed": (".", "not in this release"),
    "": (" ", "the project is not in it"),
}

#: Release to defect to what is said of it, a key of `SIGNS`.
Map = dict[str, dict[str, str]]

HEAD = """# Known defects

<!-- Written by `./scripts/matrix defects`: not to be edited. -->

What is known to be wrong in the releases of the support matrix ([what patches do there](support.md)): by
release, and below it in words. `overlay audit` says it of what is installed, by its source, and with
`--settings FILE` which of it the settings of a job meet ([how](audit.md)). A defect that is not here may be
there all the same.
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
    """Write the page, or compare it with the tables."""
    parser = argparse.ArgumentParser(description="Write docs/defects.md: which release has what.")
    parser.add_argument("--check", action="store_true", help="write nothing, and fail if the page differs")
    if parser.parse_args(arguments).check:
        return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
    return 0
