"""Write what the patches change in a job that runs, as one table for each project."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from overlay.patch import CHANGES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from overlay.patch import Patch

HEAD = """# What changes in my run

<!-- Written by `./scripts/matrix patches`: not to be edited. -->

One row for each patch. It changes what is marked, and only under the settings in the last column: any other
job runs as it did. slime, miles and verl run on Megatron, so read its table too.

| column | what you may see |
|---|---|
| numbers | another loss, gradient, reward, learning rate or checkpoint, or other data |
| memory | another peak: lower, or higher where memory was given back too soon |
| speed | less time for the same work |
| hangs | a job that waited for ever goes on |
| crashes | a job that ended with an error goes on |
| safety | nothing that is computed: an error where a job would go on with something wrong, or a report |

Where numbers differ by rounding alone, the last column says so. `overlay` shows which patches apply to what
is installed, and `overlay explain ID` what one of them does and why. [All patches](patches.md) has that too.
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
    """Return how many patches change what, and which of them nobody gets unasked."""
    every = list(patches)
    said = ", ".join(f"{change} {sum(change in patch.changes for patch in every)}" for change in CHANGES)
    asked = ", ".join(f"`{patch.id}`" for patch in every if patch.opt_in)
    return (
        f"{len(every)} patches. How many change what (one may change several): {said}.\n\n"
        f"Opt-in, so that `all` leaves them out (`OVERLAY_PATCHES=all,ID` takes one): {asked or 'none'}.\n"
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
