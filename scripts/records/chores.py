"""Say what is missing of a patch: a line for each chore, with the command that does it.

    ./scripts/matrix chores verl.sft-balance           # run its contract and its removal test too: minutes
    ./scripts/matrix chores verl.sft-balance --quick   # believe the record of the contract, and run neither

What cannot be had here is counted and left out: releases that no package index has come from git
(CONTRIBUTING.md). Exit status 1 if anything is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from overlay.authoring import lint, packaging
from overlay.catalogue.deferred import facts, index_of
from overlay.catalogue.registry import PACK, load_patches, module_of
from records import _changes_in_a_run as in_a_run
from records import _support_checks, patches, retire, support, tested
from sources import releases
from tortures._contracts import CONTRACTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overlay.patch import Patch

ROOT = Path(__file__).resolve().parents[2]

DONE, MISSING, LEFT = "done", "missing", "not run"


class Chore(NamedTuple):
    """What became of one chore."""

    name: str
    #: What is missing, empty if nothing is.
    wrong: str
    #: Does it, or shows more of it.
    command: str
    #: What is worth saying where nothing is missing.
    said: str = ""
    run: bool = True

    @property
    def state(self) -> str:
        """Return whether it is done."""
        return MISSING if self.wrong else DONE if self.run else LEFT


def form(patch: Patch) -> Chore:
    """Hold the patch to the form, and its folder to the linters' placeholders."""
    found = lint.faults(patch, ROOT)
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    wrong = found[0] + more if found else ""
    return Chore("is of the form", wrong, "./scripts/test tests/patches/test_schema.py")


def on_releases(patch: Patch, *, quick: bool) -> tuple[Chore, Chore]:
    """Return whether the contract holds wherever the patch applies, and whether all of it is recorded."""
    record, missing = support.recorded(), dict[str, str]()
    held, failed, stale = 0, list[str](), list[str]()
    for release, folder in releases.for_patch(patch, missing):
        cell, known = support.audit(release, folder).get(patch.id, {}), record.get(release.name, {})
        kept = dict(known.get(patch.id, {}))
        check = kept.pop("check", "")
        applies = cell.get("verdict") == "apply"
        if cell != kept or (applies and not check):
            stale.append(release.name)
        if applies:
            outcome = check if quick else _support_checks.run(folder, [patch.id]).get(patch.id, "no contract")
            held += outcome == _support_checks.PASSED
            if outcome not in (_support_checks.PASSED, _support_checks.NOT_RUN):
                failed.append(f"{release.name}: {outcome or 'not recorded'}")
    left = f", {len(missing)} cannot be had here" if missing else ""
    wrong = _first(failed)
    if not held and not wrong:
        wrong = "it was seen to hold nowhere"
    if patch.id not in CONTRACTS:
        wrong = "there is no contract"
    word = "recorded to hold" if quick else "holds"
    write = f"./scripts/matrix --checks --write --patch {patch.id}"
    return (
        Chore(
            "contract", wrong, write.replace(" --write", ""), f"{word} on {held} releases{left}", not quick
        ),
        Chore("compat/support.json", f"differs: {_first(stale)}" if stale else "", write, left[2:]),
    )


def _first(found: list[str]) -> str:
    return found[0] + (f" (and {len(found) - 1} more)" if len(found) > 1 else "") if found else ""


def upstream_alone(patch: Patch, *, quick: bool) -> Chore:
    """Run the removal test: it fails on upstream alone wherever the patch is needed."""
    name, command = "upstream alone fails", f"./scripts/matrix retire {patch.id}"
    if quick:
        return Chore(name, "", command, run=False)
    with contextlib.redirect_stdout(sys.stderr):
        rows = retire.judged({patch.id: patch.remove.test})
    needed = [row for row in rows or () if row[2] == retire.NEEDED]
    bad = [
        f"{row[1]}: {row[2]} {row[3]}".strip()
        for row in rows or ()
        if row[2] in (retire.READY, retire.BROKEN)
    ]
    if rows is None or not (needed or bad):
        return Chore(name, "the removal test ran on no release that needs the patch", command)
    return Chore(name, _first(bad), command, f"on {len(needed)}")


def page(patch: Patch) -> Chore:
    """Return whether docs/patches.md, and the table of what changes, say what the patch says of itself."""
    texts = [path.read_text(encoding="utf-8") for path in (patches.PAGE, patches.CHANGES) if path.exists()]
    said = all(any(part in text for text in texts) for part in (patches.section(patch), in_a_run.row(patch)))
    wrong = "" if said else "says something else, or nothing"
    return Chore("docs/patches.md", wrong, "./scripts/matrix patches")


def changes(patch: Patch) -> Chore:
    """Return whether what has changed in it since the last release is said."""
    name, command = (
        "changes/*.md",
        f"write changes/{patch.id.replace('.', '-')}.md, a list item that names the patch",
    )
    tag = _git("describe", "--tags", "--abbrev=0", "--match", "v*")
    folder = Path(sys.modules[module_of(patch.id)].__file__ or "").parent
    if (
        tag
        and _git("diff", "--stat", tag, "--", str(folder)) == _git("status", "--porcelain", str(folder)) == ""
    ):
        return Chore(name, "", command, f"nothing has changed since {tag}")
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "changes").glob("*.md")]
    said = any(f"`{patch.id}`" in text for text in texts)
    return Chore(name, "" if said else "nothing since the last release names it", command)


def _git(*arguments: str) -> str:
    """Return what git says in the checkout, nothing if it fails."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments],  # noqa: S607 -- whichever git there is
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.strip() if done.returncode == 0 else ""


def listed(patch: Patch) -> Chore:
    """Return whether the wheel gets the patch."""
    module = module_of(patch.id)
    if not hasattr(sys.modules[module], "__path__"):
        return Chore("pyproject.toml", "the patch is a file, and no folder", "see CONTRIBUTING.md")
    wrong = "" if packaging.is_listed(str(ROOT / "pyproject.toml"), module) else "packages lacks it"
    return Chore("pyproject.toml", wrong, f'add "{module}" to packages')


def indexed(patch: Patch) -> Chore:
    """Return whether the index stands for the patch as it is."""
    same = index_of(PACK).get(patch.id) == facts(patch)
    return Chore("patches/_index.py", "" if same else "it is out of date", "./scripts/matrix index")


def rows(patch: Patch) -> Chore:
    """Return whether the table of what patches were tested on is of the patch's contract."""
    path = tested.file_of(patch.id.partition(".")[0])
    found = {row.contract for row in tested.read(path)[1] if row.patch == patch.id}
    wrong = "" if found == {tested.contract_digest(patch.id)} else "it has no rows of this contract"
    return Chore(f"{path.parent.name}/{path.name}", wrong, f"./scripts/matrix tested {patch.id} --write")


def of(patch: Patch, *, quick: bool) -> Iterator[Chore]:
    """Yield what became of each chore, those that take long last."""
    yield form(patch)
    yield listed(patch)
    yield indexed(patch)
    yield rows(patch)
    yield page(patch)
    yield changes(patch)
    yield from on_releases(patch, quick=quick)
    yield upstream_alone(patch, quick=quick)


def main(arguments: list[str]) -> int:
    """Print a line for each chore; 1 if anything is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("patch", metavar="ID")
    parser.add_argument("--quick", action="store_true", help="run neither contract nor removal test")
    options = parser.parse_args(arguments)
    known = load_patches()
    if options.patch not in known:
        parser.error(f"there is no patch {options.patch!r}")
    missing = False
    for chore in of(known[options.patch], quick=options.quick):
        missing = missing or bool(chore.wrong)
        more = f"{chore.wrong}: {chore.command}" if chore.wrong else chore.said
        more = more or (chore.command if chore.state == LEFT else "")
        print(f"{chore.state:<9}{chore.name:<22}{more}".rstrip(), flush=True)
    return int(missing)
