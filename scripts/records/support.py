"""The support matrix: what is decided for each patch on each release, and whether its own check passes there.

    ./scripts/matrix                    # audit every release, and say what differs from the record
    ./scripts/matrix --checks           # and run each applied patch's contract on it
    ./scripts/matrix --missing --write  # and those alone that no record says passed, with the record
    ./scripts/matrix --patch verl.x ... # look at this patch alone, and leave the others as they are
    ./scripts/matrix --recorded         # print the record, and fetch nothing

`compat/releases.txt` lists the releases and images; each is fetched without being installed, what no package
index has from git (`git_sources.py`). The record is `compat/support.json`. Exit status 1 if what is found
differs from it.
"""

from __future__ import annotations

import argparse
import difflib
import json
from typing import TYPE_CHECKING

from overlay.catalogue.registry import load_patches
from overlay.deciding.decide import decide
from overlay.enabling.engine import Engine
from records import _record, _support_checks, _support_print
from sources import releases
from tortures._upstreams import BESIDE_MEGATRON, Pristine

if TYPE_CHECKING:
    from collections.abc import Container
    from pathlib import Path

    from overlay.verdict import Verdict
    from sources.releases import Release

RECORD = releases.LIST.with_name("support.json")
LIST = releases.LIST

#: What a patch that serves one project alone is decided beside.
SERVED = {"verl": BESIDE_MEGATRON}

#: Release to patch to `verdict`, `reason` if it needs a person, and `check` if there is one and it was run.
Matrix = dict[str, dict[str, dict[str, str]]]


def recorded() -> Matrix:
    """Return the record, nothing if there is none."""
    found: Matrix = _record.read(RECORD)
    return found


def decided(site: str | None = None) -> dict[str, Verdict]:
    """Return the verdict on each patch in a folder, or in this interpreter, by id."""
    return {verdict.patch: verdict for verdict in Engine(by_table=False).plan_each(site).verdicts}


def audit(release: Release, folder: Path) -> dict[str, dict[str, str]]:
    """Return what is decided on the release in a folder, for each patch that is for its project.

    A patch that serves another project alone is decided on beside a release of that one, but in an image,
    which has that project or has it not.
    """
    found = {
        verdict.patch: verdict
        for verdict in decided(str(folder)).values()
        if verdict.verdict != "not-installed"
    }
    for name, patch in load_patches().items():
        served = patch.targets[0].serves
        if name in found and served in SERVED and not release.is_image:
            beside = releases.fetch(releases.Release(SERVED[served]))
            found[name] = decide(patch, Pristine((folder, beside)))
    return {
        name: {"verdict": one.verdict, **({"reason": one.reason} if one.loud else {})}
        for name, one in found.items()
    }


def measure(
    release: Release, folder: Path, patch: str, *, checks: bool, done: Container[str] = ()
) -> dict[str, dict[str, str]]:
    """Return what is found on a release that lies in a folder, with checks of one patch, or of all.

    Those that are `done` are not run again.
    """
    found = audit(release, folder)
    applied = [name for name, cell in found.items() if patch in ("", name) and cell["verdict"] == "apply"]
    if checks:
        found |= {name: {**found[name], "check": _support_checks.PASSED} for name in applied if name in done}
        for name, outcome in _support_checks.run(folder, [one for one in applied if one not in done]).items():
            found[name]["check"] = outcome
    return found


def passed(row: dict[str, dict[str, str]]) -> set[str]:
    """Return the patches that apply in a row of a matrix, and whose check has passed there."""
    return {
        name
        for name, cell in row.items()
        if (cell["verdict"], cell.get("check")) == ("apply", _support_checks.PASSED)
    }


def kept(found: Matrix, old: Matrix, patch: str, *, checks: bool) -> Matrix:
    """Return what is found, and the record where something was not looked at or a check was not run."""
    merged: Matrix = {}
    for release, _ in releases.read(LIST):
        before = old.get(release, {})
        row = {
            name: dict(cell if patch in ("", name) else before.get(name, cell))
            for name, cell in found.get(release, before).items()
        }
        for name, cell in row.items():
            known = before.get(name, {})
            if not checks and cell["verdict"] == "apply" and "check" in known:
                cell["check"] = known["check"]
        if row:
            merged[release] = row
    return merged


def difference(old: Matrix, new: Matrix) -> str:
    """Return what differs between two matrices, a line for each cell; empty if nothing does."""

    def lines(matrix: Matrix) -> list[str]:
        return [
            f"{name} {patch}: {json.dumps(cell)}"
            for name, row in matrix.items()
            for patch, cell in row.items()
        ]

    found = difflib.unified_diff(lines(old), lines(new), "recorded", "found", lineterm="", n=0)
    return "\n".join(line for line in found if not line.startswith("@@"))


def failed(matrix: Matrix) -> list[str]:
    """Return the checks that do not pass."""
    return [
        f"{release} {patch}: {cell['check']}"
        for release, row in matrix.items()
        for patch, cell in row.items()
        if cell.get("check", _support_checks.PASSED) not in (_support_checks.PASSED, _support_checks.NOT_RUN)
    ]


def main(arguments: list[str]) -> int:
    """Print or write the matrix; exit status 1 if it differs from the record or a check does not pass."""
    parser = argparse.ArgumentParser(description="What is decided for each patch on each release.")
    parser.add_argument(
        "only",
        nargs="*",
        metavar="RELEASE",
        help="such as verl==0.9.1 or 'slime image v0.2.4' (default: all listed)",
    )
    parser.add_argument("--patch", default="", metavar="ID", help="look at this patch alone")
    parser.add_argument("--checks", action="store_true", help="run each applied patch's contract too")
    parser.add_argument("--missing", action="store_true", help="run those that no record says passed")
    parser.add_argument("--write", action="store_true", help=f"write {RECORD.name}")
    parser.add_argument("--recorded", action="store_true", help="print the record, and fetch nothing")
    options = parser.parse_args(arguments)
    options.checks |= options.missing
    listed, old = {release.name: release for release in releases.read(LIST)}, recorded()
    if options.recorded:
        print(_support_print.tables(old, listed))
        return 0
    unknown = sorted(set(options.only) - listed.keys())
    if unknown:
        parser.error(f"{', '.join(unknown)}: not in {LIST.name}; a release is one line there")
    if options.patch and options.patch not in load_patches():
        parser.error(f"there is no patch {options.patch!r}")
    found: Matrix = {}
    missing: dict[str, str] = {}
    new = kept(found, old, options.patch, checks=options.checks)
    wanted = [listed[name] for name in options.only or listed]
    for release, folder in releases.available(wanted, missing):
        done = passed(old.get(release.name, {})) if options.missing else ()
        found[release.name] = measure(release, folder, options.patch, checks=options.checks, done=done)
        # As it is by now: somebody may be writing other releases.
        new = kept(found, recorded() if options.write else old, options.patch, checks=options.checks)
        if options.write:  # now: what was found on this release took long, and may be interrupted
            _record.write(RECORD, new, depth=2)
    different, wrong = difference(old, new), failed(found)
    print(
        "\n\n".join(
            filter(None, [_support_print.tables({name: new[name] for name in found}, listed), different])
        )
    )
    for name, why in missing.items():
        print(f"{name}: not fetched, and left as it is recorded: {why}")
    for line in wrong:
        print(f"check failed: {line}")
    return int(bool(wrong) or (bool(different) and not options.write))
