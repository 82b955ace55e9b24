"""Change what a patch knows by digest, and count the changes on which `overlay prove --trust` would trust it.

    ./scripts/torture trusted --patch verl.strict-token-budget --write

Mutants are those of `./scripts/torture mutants` that digests refuse, each kind drawn several times. On each,
the patch is trusted on trial, and its contract is run on upstream alone and with the patch, with as many
seeds as `--trust` takes. A mutant on which it is proven would have been trusted, although a digest refuses
it: it *passes*. Mutants that mean the same by their form are left out, and of those that `--trust` refuses
before it runs anything only the number is printed. The record is `compat/trust.json`.
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

from overlay.base.settings import ALONE
from overlay.catalogue.registry import load_patches
from overlay.deciding.decide import combine, decide, variant_of
from overlay.deciding.trusted import as_trusted, candidate
from overlay.pinning import own_digest, trustfile
from overlay.proving import strength, trusting
from overlay.proving.runner import STRICTLY
from progress import tracked
from records import trust
from tortures._attack import INSIDE, Attack
from tortures._contracts import CONTRACTS
from tortures._mutations import HARMLESS
from tortures._run_contracts import HOLDS, WRONG
from tortures._same_meaning import same_meaning
from tortures._start_contracts import outcomes
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
    """A mutant that digests refuse."""

    kind: str
    site: str
    module: str
    text: str
    #: What would be trusted, or why nothing would.
    proof: trustfile.Proof | str


def trials(patch: Patch, release: Release, tree: Pristine, seed: str) -> dict[tuple[str, ...], Trial]:
    """Return the mutants of a patch on a release that digests refuse, by what tells them from others."""
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
            found[one.identity] = Trial(told, one.site, one.module, text, _proof(patch, changed))
    return found


def _difference(old: ast.stmt, new: list[ast.stmt]) -> str:
    """Return the lines that are others."""
    before, after = ast.unparse(old), "\n".join(map(ast.unparse, new))
    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    return " ".join(f"{line[0]} {line[2:].strip()}" for line in lines if line[0] in "+-")


def _proof(patch: Patch, tree: Changed) -> trustfile.Proof | str:
    """Return what would be trusted of a changed source, or why nothing would, the strength left aside."""
    targets = candidate(patch, decide(patch, tree), tree)
    if isinstance(targets, str):
        return targets
    word, reason = combine(targets)
    if word != "apply":
        return reason
    entry = trust.recorded().get(patch.id, {})
    for target in targets:
        variant = variant_of(patch, target) if target.trusted else None
        if variant is not None and (other := strength.other(entry, variant.replacements, tree)):
            return other
    return trustfile.Proof(
        patch=patch.id, revision=patch.revision, content=own_digest.of_patch(patch.id),
        shared=own_digest.of_shared(patch.id), date="-", seeds="-", overlay="-",
        environment=(),
        targets=tuple(map(as_trusted, targets)),
    )  # fmt: skip


def tried(patch: str, release: Release, items: list[Trial], seed: str) -> list[tuple[str, str]]:
    """Return what became of mutants of a release, and what was said."""
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for number, item in enumerate(items):
            files.append(str(Path(folder, f"{number}.toml")))
            if isinstance(item.proof, trustfile.Proof):
                trustfile.write(files[-1], [item.proof])
        answers = {
            place: (REFUSED, item.proof) for place, item in enumerate(items) if isinstance(item.proof, str)
        }
        left = [place for place in range(len(items)) if place not in answers]
        for one in trusting.seeds(seed):
            # Most do not hold with the patch: for these, upstream alone need not be run.
            for how, who, shown in ((STRICTLY, "with the patch", HOLDS), (ALONE, "upstream alone", WRONG)):
                jobs = [(patch, items[place].module, items[place].text, how, files[place]) for place in left]
                said = outcomes(release.folders, jobs, one) if jobs else []
                for place, (outcome, why) in zip(left, said, strict=True):
                    if outcome != shown:
                        answers[place] = CAUGHT, f"{who}: {why or outcome}"
                left = [place for place in left if place not in answers]
        return [answers.get(place, (PASSED, "")) for place in range(len(items))]


def main(arguments: list[str]) -> int:
    """Print a table, and record it with `--write`."""
    parser = argparse.ArgumentParser(
        prog="scripts/torture trusted", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--patch", required=True, metavar="ID,...", help="whose contracts are measured")
    parser.add_argument("--release", default="", metavar="TEXT", help="releases whose names contain it")
    parser.add_argument("--seed", default=str(secrets.randbelow(2**31)), help="default: a new one")
    parser.add_argument("--write", action="store_true", help="record it")
    parser.add_argument("--all", action="store_true", help="list every mutant")
    options = parser.parse_args(arguments)
    known, given = load_patches(), list(releases(options.release))
    print(f"seed {options.seed}, {len(given)} releases\n")
    for name in options.patch.split(","):
        if name not in known or name not in CONTRACTS:
            parser.error(f"there is no patch {name!r} with a contract")
        seen: dict[tuple[str, ...], tuple[Trial, str, str]] = {}
        for release in tracked(given, lambda release: release.name):
            tree = Pristine(release.folders)
            if decide(known[name], tree).verdict != "apply":
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
            day = datetime.now(tz=timezone.utc).date().isoformat()
            entry = {
                # Of those that reach the contract: what is refused before says nothing of its worth.
                "passed": counts[PASSED],
                "revision": known[name].revision,
                "run": day,
                "tried": len(seen) - counts[REFUSED],
            }
            trust.write({name: {"mutants": entry}})
    return 0
