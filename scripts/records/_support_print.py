"""The tables as people read them: for each project what its patches do on each release, and on each image."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from overlay.source.decide import combine
from overlay.source.registry import load_patches
from overlay.source.table import NAME, read
from overlay.verdict import APPLY, LOUD, TargetVerdict
from sources import releases

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from overlay.patch import Patch
    from overlay.source.table import Row
    from sources.releases import Release

PATCHES = releases.LIST.parents[1] / "patches"
#: What stands for a verdict. Capitals need a person.
SIGNS = {APPLY: "applies", "not-needed": "not needed", "unknown-source": "UNKNOWN", None: "-"}
#: Columns of a block.
WIDTH = 100
#: Stands for a space at which no line is to end.
_TIED = "\0"


#: What asks for what serves it.
_ASKS = (APPLY, *LOUD)


def rows(folder: Path = PATCHES) -> list[Row]:
    """Return the rows of the tables of all projects."""
    return [row for path in sorted(folder.glob(f"*/{NAME}")) for row in read(str(path))]


def cells(
    found: Iterable[Row], patches: Mapping[str, Patch], listed: Iterable[Release]
) -> dict[str, dict[str, str]]:
    """Return the verdict on each patch, by the sources of a list. It is unknown where there is no row."""
    said = {(row.patch, row.target, name): row.verdict for row in found for name in row.sources()}
    there = {(project, name) for _, project, name in said}
    table: dict[str, dict[str, str]] = {}
    for release in listed:
        here = table.setdefault(release.name, {})
        for patch in patches.values():
            words = {
                one.project.name: said.get((patch.id, one.project.name, release.name), "not-installed")
                for one in patch.targets
            }
            for one in patch.targets:  # what serves a project to which nothing is done has nothing to do
                if (
                    one.serves
                    and (one.project.name, release.name) in there
                    and words[one.serves] not in _ASKS
                ):
                    words[one.project.name] = "not-needed"
            ours = tuple(
                TargetVerdict(
                    project=one.project.name, verdict=words[one.project.name], optional=one.optional
                )
                for one in patch.targets
                if words[one.project.name] != "not-installed" or not one.optional
            )
            word = combine(ours)[0]
            if word == "not-installed" and (patch.targets[0].project.name, release.name) in there:
                word = "unknown-source"
            if word != "not-installed":
                here[patch.id] = word
    return table


def recorded() -> dict[str, dict[str, str]]:
    """Return the verdict on each patch of overlay on each source of the list, as the tables have it."""
    return cells(rows(), load_patches(), releases.read())


def over(
    table: Mapping[str, Mapping[str, str]], patches: Iterable[str], listed: Iterable[Release]
) -> list[str]:
    """Return the patches that the newest release and every head of their project do without."""
    ours = [one for one in listed if not one.is_image]
    found = []
    for patch in patches:
        own = [one for one in ours if one.project.partition("-")[0] == patch.partition(".")[0]]
        newest = [one for one in own if not one.parts][-1:] + [one for one in own if one.parts]
        if newest and all(table[one.name].get(patch) == "not-needed" for one in newest):
            found.append(patch)
    return found


def text() -> str:
    """Return what the tables say of each source of the list, and which patches have had their day."""
    listed = releases.read()
    table = cells(rows(), load_patches(), listed)
    parts = []
    for project in dict.fromkeys(one.project for one in listed):
        ours = [one for one in listed if one.project == project]
        plain = {_label(one): table[one.name] for one in ours if not one.is_image}
        parts += [_table(project, plain)] if plain else []
        parts += [_block(one, table[one.name]) for one in ours if one.is_image]
    done = ", ".join(over(table, load_patches(), listed)) or "none"
    parts.append(textwrap.fill(f"not needed by the newest release and the heads: {done}", WIDTH))
    return "\n\n".join(parts)


def _label(release: Release) -> str:
    """Return what stands in the first column: the version, or the name of a head and its commit."""
    if not release.parts:
        return release.name.partition("==")[2]
    return f"{release.name.partition(' ')[2]} {release.parts[0].partition(' ')[2]}"


def _table(project: str, rows: Mapping[str, Mapping[str, str]]) -> str:
    """Return a row for each release, a column for each patch."""
    patches = sorted({patch for row in rows.values() for patch in row})
    lines = [[project, *(patch.partition(".")[2] for patch in patches)]]
    lines += [[version, *(SIGNS[row.get(patch)] for patch in patches)] for version, row in rows.items()]
    widths = [max(len(row[column]) for row in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in lines
    )


def _block(image: Release, row: Mapping[str, str]) -> str:
    """Return what an image is made of, and below it a line for each of the signs."""
    signs: dict[str, list[str]] = {}
    for patch, verdict in sorted(row.items()):
        signs.setdefault(SIGNS[verdict], []).append(patch)
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
