"""Print what a contract is worth in place of digests, as `overlay prove --trust` reads it.

    ./scripts/matrix trust           # print the record
    ./scripts/matrix trust --write   # read from all listed releases what replaced functions take and read

`./scripts/torture trusted` measures the mutants.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overlay.catalogue.registry import load_patches
from overlay.proving import strength
from overlay.reading.source import InstalledTree
from records import _record, digests
from sources import releases

if TYPE_CHECKING:
    from collections.abc import Mapping

    from overlay.patch import Patch

RECORD = Path(__file__).resolve().parents[2] / "compat" / strength.RECORD
#: By patch, `parameters`, `reads` and `mutants`.
Record = dict[str, dict[str, Any]]


def recorded() -> Record:
    """Return the record, empty if there is none."""
    found: Record = _record.read(RECORD)
    return found


def write(found: Mapping[str, Mapping[str, Any]]) -> None:
    """Write what was found of patches, and keep all else."""
    record = recorded()
    for patch, entry in found.items():
        record[patch] = dict(sorted({**record.get(patch, {}), **entry}.items()))
    _record.write(RECORD, dict(sorted(record.items())), depth=1)


def known() -> Record:
    """Return by patch what known sources of each replaced site take and read, on all listed releases."""
    found: dict[str, dict[str, dict[str, set[str]]]] = {
        name: {"parameters": {}, "reads": {}} for name in load_patches()
    }
    missing: dict[str, str] = {}
    for _, folder in releases.available(releases.read(), missing):
        tree = InstalledTree(str(folder))
        for name, patch in load_patches().items():
            known = digests.known(patch, "apply")
            for site in _replaced(patch):
                # What an import stands for is to be known as well, if the patch asks for it.
                if (
                    site in known
                    and tree.has(site.partition(":")[0])
                    and all(
                        tree.digest(one) in known.get(one, [tree.digest(one)]) for one in tree.chain(site)
                    )
                ):
                    taken = strength.parameters(site, tree)
                    parameters = found[name]["parameters"].setdefault(site, set())
                    parameters |= set() if taken is None else {taken}
                    marks = map(strength.mark, strength.reads(site, tree))
                    found[name]["reads"].setdefault(site, set()).update(marks)
    for name, why in missing.items():
        print(f"left out: {name}: {why}")
    return {
        name: {
            "parameters": {site: sorted(said) for site, said in sorted(entry["parameters"].items())},
            "reads": {site: " ".join(sorted(said)) for site, said in sorted(entry["reads"].items())},
        }
        for name, entry in found.items()
    }


def _replaced(patch: Patch) -> set[str]:
    variants = [variant for target in patch.targets for variant in target.variants]
    return {item.site for variant in variants for item in variant.replacements if not item.new}


def table() -> str:
    """Return what is recorded of each patch: changed sources, how many pass, and whether that is enough."""
    lines = [f"{'patch':36}{'changed':>8}{'passed':>8}{'share':>8}  run on      --trust"]
    record = recorded()
    for name, patch in load_patches().items():
        found = strength.strength(record.get(name, {}))
        weak = strength.too_weak(found, patch.revision)
        if found is None:
            lines.append(f"{name:36}{'-':>8}{'-':>8}{'-':>8}  not run yet refuses")
            continue
        word = "refuses" if weak else "may trust"
        lines.append(f"{name:36}{found.tried:8}{found.passed:8}{found.share:8.0%}  {found.run}  {word}")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Print the record, written anew with `--write`."""
    parser = argparse.ArgumentParser(
        prog="scripts/matrix trust", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--write", action="store_true", help="write what is taken and read anew")
    options = parser.parse_args(arguments)
    if options.write:
        write(known())
    print(table())
    return 0
