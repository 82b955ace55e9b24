"""Change what a patch was tested on, and count the changes that its contract lets pass.

    ./scripts/torture trusted --patch verl.strict-token-budget --write

Mutants are those of `./scripts/torture mutants` on which the patch is not applied, each kind drawn several
times. On each, the contract is run as `overlay prove --write` runs it: on upstream alone and with the patch,
with as many seeds. A mutant *passes* if that command would write a row of it. Mutants that mean the same by
their form are left out, and of those on which nothing can be tried only the number is printed. `mutants` in
`patches/*/tested.json` is the record: what `overlay prove --write` refuses by.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import secrets
import tempfile
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from overlay.desk.prove import rows
from overlay.desk.prove.contract import STRICTLY
from overlay.desk.prove.prove import seeds
from overlay.model.settings import ALONE
from overlay.source.decide import decide
from overlay.source.registry import load_patches, mutants, tables
from progress import tracked
from records import tested
from tortures._attack import INSIDE, Attack
from tortures._mutations import HARMLESS
from tortures._run_contracts import CONTRACTS, HOLDS, WRONG, outcomes
from tortures._same_meaning import same_meaning
from tortures._upstreams import Changed, Pristine, releases

if TYPE_CHECKING:
    from overlay.patch import Patch
    from tortures._upstreams import Release

#: Mutants of the same behaviour, of whatever source: the decorator hands on what it is given.
SAME = (*HARMLESS, "another name", "decorator added", "bound again")
#: Characters of a line.
LONGEST = 300
#: How often each kind is drawn of each site.
DRAWS = 4
#: What became of a mutant: refused before anything is run, not proven by its contract, or it passes.
REFUSED, CAUGHT, PASSED = "refused", "caught", "passed"


class Trial(NamedTuple):
    """A mutant on which the patch is not applied."""

    kind: str
    site: str
    module: str
    text: str
    #: What may be tried on it.
    trial: rows.Trial


def trials(patch: Patch, release: Release, tree: Pristine, seed: str) -> dict[tuple[str, ...], Trial]:
    """Return the mutants of a patch on a release that it is not applied to, by what tells them apart."""
    found: dict[tuple[str, ...], Trial] = {}
    for draw in range(DRAWS):
        for one in Attack(patch, release, tree, (), f"{seed}/{draw}").mutants(0):
            if one.where != INSIDE or one.kind in SAME or one.verdict == "apply" or one.identity in found:
                continue
            if same_meaning(one.old, one.new):
                continue
            text = one.text(tree)
            changed = Changed(tree, one.module, ast.parse(text))
            told = f"{one.kind}: {_difference(one.old, one.new)}"
            trial = rows.trial(patch, changed, tables(), "mutant")
            found[one.identity] = Trial(told, one.site, one.module, text, trial)
    return found


def _difference(old: ast.stmt, new: list[ast.stmt]) -> str:
    """Return the lines that are others."""
    before, after = ast.unparse(old), "\n".join(map(ast.unparse, new))
    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    return " ".join(f"{line[0]} {line[2:].strip()}" for line in lines if line[0] in "+-")


def tried(patch: str, release: Release, items: list[Trial], seed: str) -> list[tuple[str, str]]:
    """Return what became of mutants of a release, and what was said.

    Of several variants that fit, the likeliest is tried, as its choice is made before any run.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = []
        answers = {}
        for number, item in enumerate(items):
            files.append(str(Path(folder, f"{number}.json")))
            if item.trial.choices:
                Path(files[-1]).write_text(rows.text_of({}, item.trial.choices[0], {}), encoding="utf-8")
            else:
                answers[number] = REFUSED, item.trial.refused or "nothing that it replaces is there"
        left = [place for place in range(len(items)) if place not in answers]
        for one in seeds(int(seed)):
            # Most do not hold with the patch: for these, upstream alone need not be run.
            for how, who, shown in ((STRICTLY, "with the patch", HOLDS), (ALONE, "upstream alone", WRONG)):
                jobs = [(patch, items[place].module, items[place].text, how, files[place]) for place in left]
                said = outcomes(release.folders, jobs, str(one)) if jobs else []
                for place, (outcome, why) in zip(left, said, strict=True):
                    if outcome != shown:
                        answers[place] = CAUGHT, f"{who}: {why or outcome}"
                left = [place for place in left if place not in answers]
        return [answers.get(place, (PASSED, "")) for place in range(len(items))]


def recorded() -> str:
    """Return what is recorded of the contracts that were measured, and whether that is enough."""
    lines = [f"{'patch':28}{'changed':>8}{'passed':>8}{'share':>8}  run on      its contract"]
    for name in load_patches():
        if (found := mutants(name)) is not None:
            share = found["passed"] / max(found["tried"], 1)
            word = "is too weak" if rows.too_weak(found) else "is strong enough"
            lines.append(
                f"{name:28}{found['tried']:8}{found['passed']:8}{share:8.0%}  {found['run']}  {word}"
            )
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Print a table, and record it with `--write`."""
    parser = argparse.ArgumentParser(
        prog="scripts/torture trusted", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--patch", default="", metavar="ID,...", help="whose contracts are measured")
    parser.add_argument("--recorded", action="store_true", help="print the record, and run nothing")
    parser.add_argument("--release", default="", metavar="TEXT", help="releases whose names contain it")
    parser.add_argument("--seed", default=str(secrets.randbelow(2**31)), help="default: a new one")
    parser.add_argument("--write", action="store_true", help="record it")
    parser.add_argument("--all", action="store_true", help="list every mutant")
    options = parser.parse_args(arguments)
    if options.recorded:
        print(recorded())
        return 0
    if not options.patch:
        parser.error("--patch says whose contracts are measured")
    known, given = load_patches(), list(releases(options.release))
    print(f"seed {options.seed}, {len(given)} releases\n")
    for name in options.patch.split(","):
        if name not in known or name not in CONTRACTS:
            parser.error(f"there is no patch {name!r} with a contract")
        seen: dict[tuple[str, ...], tuple[Trial, str, str]] = {}
        for release in tracked(given, lambda release: release.name):
            tree = Pristine(release.folders)
            if decide(known[name], tree, tables()).verdict != "apply":
                continue
            fresh = {
                key: one
                for key, one in trials(known[name], release, tree, options.seed).items()
                if key not in seen
            }
            found = tried(name, release, list(fresh.values()), options.seed)
            seen |= {key: (one, *said) for (key, one), said in zip(fresh.items(), found, strict=True)}
        counts = Counter(word for _, word, _ in seen.values())
        told = f"{counts[REFUSED]} refused unrun, {counts[CAUGHT]} caught, {counts[PASSED]} passed"
        print(f"{name}: {len(seen)} changed sources, {told}", flush=True)
        for one, word, why in seen.values():
            if options.all or word == PASSED:
                print(f"  {word:8} {one.site}, {one.kind}: {why}"[:LONGEST])
        if options.write:
            # Of those that reach the contract: what is refused before says nothing of its worth.
            count = {"tried": len(seen) - counts[REFUSED], "passed": counts[PASSED]}
            day = datetime.now(tz=timezone.utc).date().isoformat()
            path = tested.file_of(name.partition(".")[0])
            file = tested.read(path.parent.name)
            mutants = dict(sorted({**file.mutants, name: {**count, "run": day}}.items()))
            path.write_text(rows.text_of(file.sources, file.rows, mutants), encoding="utf-8")
    return 0
