"""Write what the patches change in a job that runs, as one table for each project."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby

from overlay.patch import CHANGES, Patch

HEAD = """# What changes in my run

<!-- Written by `./scripts/matrix patches`: not to be edited. -->

One row for each patch. A patch changes what is marked, and only under the settings in the last column: any
other job runs as it did. slime, miles and verl run on Megatron, so read its table too.

| column | what you may see |
|---|---|
| numbers | another loss, gradient, reward, learning rate or checkpoint, or other data |
| memory | another peak: lower, or higher where upstream frees memory too soon |
| speed | less time for the same work |
| hangs | a job that would wait forever goes on |
| crashes | a job that would end with an error goes on |
| safety | nothing computed: an error instead of a wrong result, or a report |

Where numbers differ only by rounding, the last column says so. `overlay` shows which patches apply to your
installation. [All patches](patches.md) says what each does and why.
"""


def page(patches: Mapping[str, Patch]) -> str:
    """Return the page: how many patches change what, and a table for each project."""
    ordered = [patches[name] for name in sorted(patches)]
    tables = [
        section(project, list(members))
        for project, members in groupby(ordered, lambda patch: project_of(patch.id))
    ]
    return "\n".join([HEAD, counted(ordered), *tables])


def project_of(name: str) -> str:
    """Return the project that a patch's id begins with."""
    return name.partition(".")[0]


def counted(patches: Iterable[Patch]) -> str:
    """Return how many patches change what, and which are opt-in."""
    every = list(patches)
    said = ", ".join(f"{change} {sum(change in patch.changes for patch in every)}" for change in CHANGES)
    asked = ", ".join(f"`{patch.id}`" for patch in every if patch.opt_in)
    return (
        f"{len(every)} patches; a patch may change several things: {said}.\n\n"
        f"Opt-in, selected by `OVERLAY_PATCHES=all,ID`: {asked or 'none'}.\n"
    )


def section(project: str, patches: Iterable[Patch]) -> str:
    """Return the table of one project."""
    head = ["patch", *CHANGES, "when"]
    rows = ["| " + " | ".join(head) + " |", "|---" + "|:-:" * len(CHANGES) + "|---|", *map(row, patches)]
    return "\n".join([f"## {project}", "", *rows, ""])


def row(patch: Patch) -> str:
    """Return the row of one patch."""
    # The page of the patches has a heading for each, and GitHub drops the dot from its anchor.
    name = f"[`{patch.id}`](patches.md#{patch.id.replace('.', '')})" + (" (opt-in)" if patch.opt_in else "")
    marks = ["yes" if change in patch.changes else "" for change in CHANGES]
    return "| " + " | ".join([name, *marks, patch.met.replace("|", "\\|")]) + " |"
