"""The support matrix as people read it: for each project a table, and below it a block for each image."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from overlay.verdict import LOUD
from records._support_checks import NOT_RUN, PASSED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sources.releases import Release

    Row = Mapping[str, Mapping[str, str]]

#: What stands for a verdict; others stand for themselves, and those that need a person in capitals.
SIGNS = {
    "apply": "applies",
    "fixed-upstream": "fixed",
    "superseded": "superseded",
    "not-affected": "not affected",
}
#: Columns of a block.
WIDTH = 100
#: Stands for a space at which no line is to end.
_TIED = "\0"


def sign(cell: Mapping[str, str] | None) -> str:
    """Return the few words for one cell."""
    if cell is None:
        return "-"
    verdict, check = cell["verdict"], cell.get("check")
    word = SIGNS.get(verdict, verdict.upper() if verdict in LOUD else verdict)
    said = {PASSED: ", checked", NOT_RUN: ", not run", None: ""}
    return f"{word}{said.get(check, ', CHECK FAILED')}"


def tables(matrix: Mapping[str, Row], listed: Mapping[str, Release]) -> str:
    """Return all of a matrix, given what the names of its rows stand for."""
    parts = []
    for project in dict.fromkeys(listed[name].project for name in matrix):
        ours = [listed[name] for name in matrix if listed[name].project == project]
        rows = {_label(one): matrix[one.name] for one in ours if not one.is_image}
        parts += [_table(project, rows)] if rows else []
        parts += [_block(one, matrix[one.name]) for one in ours if one.is_image]
    return "\n\n".join(parts)


def _label(release: Release) -> str:
    """Return what stands in the first column: the version, or the name of a head and its commit."""
    if not release.parts:
        return release.name.partition("==")[2]
    return f"{release.name.partition(' ')[2]} {release.parts[0].partition(' ')[2]}"


def _table(project: str, rows: Mapping[str, Row]) -> str:
    """Return a row for each release, a column for each patch."""
    patches = sorted({patch for row in rows.values() for patch in row})
    cells = [[project, *(patch.partition(".")[2] for patch in patches)]]
    cells += [[version, *(sign(row.get(patch)) for patch in patches)] for version, row in rows.items()]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )


def _block(image: Release, row: Row) -> str:
    """Return what an image is made of, and below it a line for each of the signs."""
    signs: dict[str, list[str]] = {}
    for patch, cell in sorted(row.items()):
        signs.setdefault(sign(cell), []).append(patch)
    width = max(map(len, signs), default=0)
    # A line ends after a part, never in one.
    parts = " + ".join(part.replace(" ", _TIED) for part in image.parts)
    lines = textwrap.wrap(f"{image.name} = {parts}", WIDTH, subsequent_indent="    ", break_on_hyphens=False)
    lines = [line.replace(_TIED, " ") for line in lines]
    for said, patches in sorted(signs.items()):
        lines += textwrap.wrap(
            ", ".join(patches), WIDTH, initial_indent=f"  {said:<{width}}  ",
            subsequent_indent=" " * (width + 4), break_on_hyphens=False,
        )  # fmt: skip
    return "\n".join(lines)
