"""Write docs/patches.md and docs/changes-in-a-run.md from what the patches say of themselves.

With `--check` nothing is written, and the pages are compared with what would be.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from overlay.catalogue.registry import load_patches
from overlay.report.page import link as address_of
from records import _changes_in_a_run

if TYPE_CHECKING:
    from overlay.patch import Patch, Target

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "patches.md"
#: What each patch changes in a job that runs.
CHANGES = ROOT / "docs" / "changes-in-a-run.md"

HEAD = """# The patches

<!-- Written by `./scripts/matrix patches`: not to be edited. -->

What each of them says of itself, as `overlay explain ID` does. A range of versions is where a patch looks; in
it the source decides, and past its end one that is known to the letter. *Evidence* is the test that fails
without the patch, on plain upstream; once it passes on a release, the patch has had its day there. slime's
versions are those of its `setup.py`: the tag v0.1.0 says 0.0.1 there, and v0.2.4 says 0.2.3.
"""


def page() -> str:
    """Return the page."""
    patches = load_patches()
    return "\n".join([HEAD, *(section(patches[name]) for name in sorted(patches))])


def section(patch: Patch) -> str:
    """Return what the page says of one patch."""
    facts = [
        f"- changes in a job: {', '.join(patch.changes)}",
        f"- met under: {patch.met}",
        f"- upstream: {', '.join(map(link, patch.upstream))}",
        f"- not needed once {patch.remove.when}"
        + (f" (in {patch.remove.version})" if patch.remove.version else ""),
        f"- shown by: `{patch.remove.test}`",
    ]
    if measured := pages(patch.id):
        facts.append("- what was measured: " + ", ".join(f"[{name}]({name})" for name in measured))
    if patch.opt_in:
        facts.append(f"- opt-in: `OVERLAY_PATCHES=all,{patch.id}`. {patch.evidence}")
    else:
        facts.append(f"- exact: {patch.evidence}")
    if patch.requires:
        facts.append("- needs: " + ", ".join(f"`{name}`" for name in patch.requires))
    tables = [table(target) for target in patch.targets]
    return "\n".join(
        [f"## `{patch.id}`", "", f"**{patch.summary}.**", "", patch.why, "", *facts, "", *tables]
    )


def link(reference: str) -> str:
    """Return a link to an issue, a pull request or a commit."""
    address = address_of(reference)
    return f"[{reference}]({address})" if address else reference


def table(target: Target) -> str:
    """Return what becomes of the patch by version of one project."""
    kind = " (optional)" if target.optional else ""
    lines = [f"| {target.project.name}{kind} | verdict |", "|---|---|"]
    for variant in target.variants:
        why = f": {variant.reason}" if variant.reason else ""
        lines.append(f"| `{variant.versions}` | {variant.verdict}{why} |")
    return "\n".join([*lines, ""])


def pages(name: str) -> list[str]:
    """Return the pages of the documents that are about a patch: their first lines name it."""
    found = []
    for path in sorted((ROOT / "docs").glob("*.md")):
        first = path.read_text().partition("\n## ")[0]
        if path not in (PAGE, CHANGES) and f"`{name}`" in first:
            found.append(path.name)
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
