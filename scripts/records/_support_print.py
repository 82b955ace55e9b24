"""The tables as people read them: for each project a row for each source, and a column for each patch."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path

from overlay.patch import Patch
from overlay.source.decide import combine
from overlay.source.registry import load_patches
from overlay.source.table import TABLE_FILE, Row, read
from overlay.verdict import APPLY, LOUD, TargetVerdict
from sources import releases
from sources.releases import Release

PATCHES = releases.LIST.parents[1] / "patches"
#: What stands for a verdict, in one letter and in words. What is left out is not there.
SIGNS = {
    APPLY: ("+", "applies: the contract fails without the patch, and holds with it"),
    "not-needed": (".", "not needed: upstream has a fix, or lacks the feature"),
    "unknown-source": ("?", "not tested there, so not applied, and a warning says so"),
}
#: Columns of a line of text.
WIDTH = 100

#: What asks for what serves it.
_ASKS = (APPLY, *LOUD)


def rows(folder: Path = PATCHES) -> list[Row]:
    """Return the rows of the tables of all projects."""
    return [row for path in sorted(folder.glob(f"*/{TABLE_FILE}")) for row in read(str(path))]


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
    parts = ["\n".join(f"{sign}  {words}" for sign, words in SIGNS.values())]
    for project in dict.fromkeys(
        target.project.name for one in load_patches().values() for target in one.targets
    ):
        group = project.partition("-")[0]
        patches = sorted(patch for patch in load_patches() if patch.startswith(f"{group}."))
        here = [one for one in listed if any(patch in table[one.name] for patch in patches)]
        if patches and here:
            parts.append("\n".join(_table(group, patches, here, table)))
    done = ", ".join(over(table, load_patches(), listed)) or "none"
    text = f"not needed by the newest release and the heads: {done}"
    parts.append(textwrap.fill(text, WIDTH, break_on_hyphens=False))
    return "\n\n".join(parts)


def _table(
    group: str, patches: list[str], listed: list[Release], table: Mapping[str, Mapping[str, str]]
) -> list[str]:
    """Return a row for neighbours that are alike, with what an image is made of at its end."""
    cells = {
        one: ("".join(SIGNS.get(table[one.name].get(patch, ""), " ")[0] for patch in patches), one.parts)
        for one in listed
    }
    rows = [
        (span([one.name for one in alike]), *found) for found, alike in groupby(listed, cells.__getitem__)
    ]
    width = max(len(name) for name, *_ in rows)
    lines = staircase(patches, group, width)
    lines += [f"{name:<{width}}  {signs}  {' + '.join(parts)}".rstrip() for name, signs, parts in rows]
    return lines


def span(names: list[str]) -> str:
    """Return the name of neighbours that are alike, such as `verl==0.7.0 to 0.7.1`."""
    return names[0] + (f" to {re.sub('.*(==| )', '', names[-1])}" if len(names) > 1 else "")


def staircase(names: Iterable[str], corner: str, width: int) -> list[str]:
    """Return the heads of columns that are one character wide, each name above its column."""
    return [f"{'' if place else corner:<{width}}  {'|' * place}{name}" for place, name in enumerate(names)]
