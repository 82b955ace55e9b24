"""Write docs/patches.md and docs/changes-in-a-run.md from what the patches say of themselves.

With `--check` nothing is written, and the pages are compared with what would be.
"""

from __future__ import annotations

import argparse
import re
from functools import cache
from pathlib import Path

from overlay.desk.report.page import link as address_of
from overlay.patch import Patch, Target
from overlay.source.registry import load_patches
from overlay.source.table import Row
from records import _changes_in_a_run, _support_print
from sources import releases

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "patches.md"
#: What each patch changes in a job that runs.
CHANGES = ROOT / "docs" / "changes-in-a-run.md"

HEAD = """# All patches

<!-- Written by `./scripts/matrix patches`: not to be edited. -->

What each patch fixes, when you need it, why the fix is right, and the releases that it was tested on
([with the images](support.md)). `overlay explain ID` prints the same for your installation. Every patch has a
contract: a test that fails without the patch and holds with it. `overlay prove ID` runs it on your
installation.
"""


def page() -> str:
    """Return the page."""
    patches = load_patches()
    return "\n".join([HEAD, *(section(patches[name]) for name in sorted(patches))])


def section(patch: Patch) -> str:
    """Return what the page says of one patch."""
    exact = f"opt-in (`OVERLAY_PATCHES=all,{patch.id}`)" if patch.opt_in else "exact"
    needs = f" Needs {', '.join(f'`{name}`' for name in patch.requires)}." if patch.requires else ""
    measured = "".join(f" [Measured]({place})." for place in measurements(patch.id))
    links = ", ".join(map(link, patch.upstream))
    facts = [
        f"- *When:* {patch.met} *Changes:* {', '.join(patch.changes)}.{measured}",
        f"- *{exact[0].upper()}{exact[1:]}:* {patch.evidence}{needs}",
        f"- *Tested:* {'; '.join(tested(patch, target) for target in patch.targets)}. *Upstream:* {links}.",
    ]
    return "\n".join([f"## `{patch.id}`", "", f"**{patch.summary}.** {patch.why}", "", *facts, ""])


def link(reference: str) -> str:
    """Return a link to an issue, a pull request or a commit."""
    address = address_of(reference)
    return f"[{reference}]({address})" if address else reference


def tested(patch: Patch, target: Target) -> str:
    """Return on which sources of one project a patch applies, and on which it is not needed."""
    if target.serves:
        return f"{target.project.name}: changed for {target.serves} alone"
    parts = []
    for verdict, words in (("apply", "applies to"), ("not-needed", "not needed by")):
        names = {
            name
            for row in _rows()
            if (row.patch, row.target, row.verdict) == (patch.id, target.project.name, verdict)
            for name in row.sources()
        }
        if ranges := _ranges(names, target.project.name):
            parts.append(f"{words} {ranges}")
    kind = " (optional)" if target.optional else ""
    return f"{target.project.name}{kind}: {', '.join(parts) or 'not tested alone'}"


@cache
def _rows() -> list[Row]:
    return _support_print.rows()


def _ranges(names: set[str], project: str) -> str:
    """Return the releases and heads of a project among some sources, those in a row as a range."""
    ours = [one.name for one in releases.read() if one.project == project and not one.is_image]
    parts: list[list[str]] = []
    for before, name in zip(["", *ours], ours, strict=False):
        if name not in names:
            continue
        if parts and parts[-1][-1] == before and "==" in name:
            parts[-1].append(name)
        else:
            parts.append([name])
    return ", ".join(
        " to ".join(name.removeprefix(project).lstrip("= ") for name in dict.fromkeys((part[0], part[-1])))
        for part in parts
    )


def measurements(name: str) -> list[str]:
    """Return the places in the documents whose heading names a patch."""
    found = []
    for path in sorted((ROOT / "docs").glob("*.md")):
        if path in (PAGE, CHANGES):
            continue
        for title in re.findall(rf"^#+ (.*`{re.escape(name)}`.*)$", path.read_text(), re.MULTILINE):
            anchor = re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
            found.append(f"{path.name}#{anchor}")
    return found


def main(arguments: list[str]) -> int:
    """Write the pages, or compare them."""
    parser = argparse.ArgumentParser(
        description=f"Write docs/{PAGE.name} and docs/{CHANGES.name} from the patches."
    )
    parser.add_argument("--check", action="store_true", help="write nothing, and fail if one differs")
    pages = {PAGE: page(), CHANGES: _changes_in_a_run.page(load_patches())}
    if parser.parse_args(arguments).check:
        return int(any(not path.exists() or path.read_text() != text for path, text in pages.items()))
    for path, text in pages.items():
        path.write_text(text)
    return 0
