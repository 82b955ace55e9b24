#!/usr/bin/env python3
"""The support matrix: what is decided for each patch on each release, and whether its own check passes there.

    python scripts/matrix.py                    # audit every release, and say what differs from the record
    python scripts/matrix.py --checks           # and run each applied patch's contract on it
    python scripts/matrix.py --checks --write   # write the record, after each release
    python scripts/matrix.py --patch verl.x ... # look at this patch alone, and leave the others as they are
    python scripts/matrix.py --recorded         # print the record, and fetch nothing

`compat/releases.txt` lists the releases; each is fetched without being installed, slime from SLIME_REPO. The
record is `compat/support.json`. Exit status 1 if what is found differs from it.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from pathlib import Path

import fetch_release
import fetch_slime
import matrix_checks

import overlay
from overlay._registry import load_patches
from overlay.verdict import LOUD

COMPAT = Path(__file__).resolve().parent.parent / "compat"
RECORD = COMPAT / "support.json"
LIST = COMPAT / "releases.txt"

#: Release to patch to `verdict`, `reason` if it needs a person, and `check` if there is one and it was run.
Matrix = dict[str, dict[str, dict[str, str]]]

#: What stands in the printed matrix for a cell.
SIGNS = {
    "apply": "applies",
    "fixed-upstream": "fixed",
    "superseded": "superseded",
    "not-affected": "not affected",
}


def releases() -> list[str]:
    """Return the releases that the matrix is of, as in the list."""
    lines = [line.partition("#")[0].strip() for line in LIST.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line]


def recorded() -> Matrix:
    """Return the record, nothing if there is none."""
    found: Matrix = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    return found


def fetch(release: str) -> Path:
    """Return the folder of a release. Raises the `FetchError` of the module that fetches it."""
    name, _, version = release.partition("==")
    return fetch_slime.fetch(version) if name == "slime" else fetch_release.fetch(release)


def audit(folder: Path) -> dict[str, dict[str, str]]:
    """Return what is decided on the release in a folder, for each patch that is for its project."""
    return {
        verdict.patch: {
            "verdict": verdict.verdict,
            **({"reason": verdict.reason} if verdict.loud else {}),
        }
        for verdict in overlay.plan("all", str(folder)).verdicts
        if verdict.verdict != "not-installed"
    }


def measure(release: str, folder: Path, patch: str, *, checks: bool) -> dict[str, dict[str, str]]:
    """Return what is found on a release that lies in a folder, with checks of one patch, or of all."""
    print(f"{release} ...", file=sys.stderr, flush=True)
    found = audit(folder)
    if checks:
        wanted = [name for name in found if patch in ("", name)]
        applied = [name for name in wanted if found[name]["verdict"] == "apply"]
        for name, outcome in matrix_checks.run(folder, applied).items():
            found[name]["check"] = outcome
    return found


def kept(found: Matrix, old: Matrix, patch: str, *, checks: bool) -> Matrix:
    """Return what is found, and the record where something was not looked at or a check was not run."""
    merged: Matrix = {}
    for release in releases():
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


def text(matrix: Matrix) -> str:
    """Return a matrix as it is recorded: a line for each cell, so that a difference is one of lines."""
    blocks = []
    for release, row in matrix.items():
        cells = [f"  {json.dumps(patch)}: {json.dumps(cell)}" for patch, cell in row.items()]
        blocks.append(f" {json.dumps(release)}: {{\n" + ",\n".join(cells) + "\n }")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


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


def sign(cell: dict[str, str] | None) -> str:
    """Return the few words for one cell."""
    if cell is None:
        return "-"
    word = SIGNS.get(cell["verdict"], cell["verdict"].upper() if cell["verdict"] in LOUD else cell["verdict"])
    check = cell.get("check")
    return (
        word if check is None else f"{word}, {'checked' if check == matrix_checks.PASSED else 'CHECK FAILED'}"
    )


def tables(matrix: Matrix) -> str:
    """Return a table for each project: a row for each release, a column for each patch."""
    parts = []
    for name in dict.fromkeys(release.partition("==")[0] for release in matrix):
        rows = {key.partition("==")[2]: row for key, row in matrix.items() if key.startswith(f"{name}==")}
        patches = sorted({patch for row in rows.values() for patch in row})
        cells = [[name, *(patch.partition(".")[2] for patch in patches)]]
        cells += [[version, *(sign(row.get(patch)) for patch in patches)] for version, row in rows.items()]
        widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
        parts.append(
            "\n".join(
                "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
                for row in cells
            )
        )
    return "\n\n".join(parts)


def failed(matrix: Matrix) -> list[str]:
    """Return the checks that do not pass."""
    return [
        f"{release} {patch}: {cell['check']}"
        for release, row in matrix.items()
        for patch, cell in row.items()
        if cell.get("check", matrix_checks.PASSED) != matrix_checks.PASSED
    ]


def main(arguments: list[str] | None = None) -> int:
    """Print or write the matrix; exit status 1 if it differs from the record or a check does not pass."""
    parser = argparse.ArgumentParser(description="What is decided for each patch on each release.")
    parser.add_argument(
        "only", nargs="*", metavar="RELEASE", help="such as verl==0.9.1 (default: all listed)"
    )
    parser.add_argument("--patch", default="", metavar="ID", help="look at this patch alone")
    parser.add_argument("--checks", action="store_true", help="run each applied patch's contract too")
    parser.add_argument("--write", action="store_true", help=f"write {RECORD.name}")
    parser.add_argument("--recorded", action="store_true", help="print the record, and fetch nothing")
    options = parser.parse_args(arguments)
    listed, old = releases(), recorded()
    if options.recorded:
        print(tables(old))
        return 0
    unknown = sorted(set(options.only) - set(listed))
    if unknown:
        parser.error(f"{', '.join(unknown)}: not in {LIST.name}; a release is one line there")
    if options.patch and options.patch not in load_patches():
        parser.error(f"there is no patch {options.patch!r}")
    found: Matrix = {}
    missing: dict[str, str] = {}
    new = kept(found, old, options.patch, checks=options.checks)
    for release in options.only or listed:
        try:
            folder = fetch(release)
        except (fetch_release.FetchError, fetch_slime.FetchError) as error:
            missing[release] = str(error)
            continue
        found[release] = measure(release, folder, options.patch, checks=options.checks)
        new = kept(found, old, options.patch, checks=options.checks)
        if options.write:  # now: what was found on this release took long, and may be interrupted
            RECORD.write_text(text(new), encoding="utf-8")
    different, wrong = difference(old, new), failed(found)
    print("\n\n".join(filter(None, [tables({name: new[name] for name in found}), different])))
    for release, why in missing.items():
        print(f"{release}: not fetched, and left as it is recorded: {why}")
    for line in wrong:
        print(f"check failed: {line}")
    return int(bool(wrong) or (bool(different) and not options.write))


if __name__ == "__main__":
    sys.exit(main())
