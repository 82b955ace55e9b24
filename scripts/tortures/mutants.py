"""Change upstreams under every patch, and require that it is refused or stays right.

Each site of a patch's shape is changed in every way that there is (`_mutations`), on each supported release,
and so are some of the functions and names next to it. A mutant is decided on as `overlay audit` would. One
that the patch applies to is run: the contract of the patch (`_contracts`) has to hold, or the run to end with
an error. Mutants that change no meaning have to be applied to.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from overlay._registry import load_patches
from tortures._attack import INSIDE, Mutant, attack
from tortures._contracts import CONTRACTS
from tortures._mutations import HARMLESS
from tortures._run_contracts import HOLDS, NO_END, RAISES, WRONG
from tortures._upstreams import Pristine, path_of, releases

if TYPE_CHECKING:
    from collections.abc import Iterable

#: What became of a mutant, as the table's columns: the verdict is loud; the meaning is the same and the patch
#: applies; it applies, and its contract was run, or is not one that can be run here; or what must not be.
LOUD, SAME, NOT_RUN = "loud", "same", "not run"
COLUMNS = (LOUD, SAME, HOLDS, RAISES, NOT_RUN, WRONG)
RUNNER = Path(__file__).with_name("_run_contracts.py")
#: Seconds for one contract, on a machine that is busy.
PATIENCE = 240


def judged(mutant: Mutant) -> str | None:
    """Return what became of a mutant by its verdict alone, `None` if its contract has to be run."""
    applies, harmless = mutant.verdict == "apply", mutant.kind in HARMLESS
    if harmless:
        return SAME if applies else WRONG
    if not applies:
        return LOUD if mutant.reason else WRONG
    if mutant.where == INSIDE:
        return WRONG
    return None if mutant.patch in CONTRACTS else NOT_RUN


def run(mutants: list[tuple[Mutant, str]], seed: str) -> list[tuple[str, str]]:
    """Return the outcome of each mutant's contract, all of one release, and what was said.

    The release as it is comes first, for each patch: a contract that does not hold there says nothing.
    """
    release = mutants[0][0].release
    patches = list(dict.fromkeys(mutant.patch for mutant, _ in mutants))
    jobs = [(patch, "", "") for patch in patches] + [(one.patch, one.module, text) for one, text in mutants]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OVERLAY")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(RUNNER), seed, str(PATIENCE)],
        input="".join(json.dumps(job) + "\n" for job in jobs),
        env={**clean, "PYTHONPATH": path_of(release.folders), "OMP_NUM_THREADS": "1", "OVERLAY_LOG": "off"},
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True,
    )  # fmt: skip
    said: list[tuple[str, str]] = [tuple(json.loads(line)) for line in done.stdout.splitlines()]
    for patch, (outcome, why) in zip(patches, said, strict=False):
        if outcome != HOLDS:
            raise RuntimeError(f"the contract of {patch} cannot be run on {release.name}: {outcome}: {why}")
    return said[len(patches) :]


def table(rows: Iterable[tuple[str, str]], name: str) -> str:
    """Return counts of outcomes by patch or by kind, as text in columns."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row, outcome in rows:
        counts[row][outcome] += 1
        counts["all"][outcome] += 1
    lines = [f"{name:28}{'mutants':>8}" + "".join(f"{column:>9}" for column in COLUMNS)]
    for row, count in sorted(counts.items(), key=lambda item: (item[0] == "all", item[0])):
        lines.append(f"{row:28}{count.total():8}" + "".join(f"{count[column]:9}" for column in COLUMNS))
    return "\n".join(lines)


def parsed(arguments: list[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        prog="scripts/torture mutants", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--seed", default=str(secrets.randbelow(2**31)), help="default: a new one")
    parser.add_argument("--release", default="", metavar="TEXT", help="releases whose names contain it")
    parser.add_argument("--patch", default="", metavar="TEXT", help="patches whose ids contain it")
    parser.add_argument("--beside", type=int, default=4, metavar="N", help="mutants next to each shape")
    parser.add_argument("--all", action="store_true", help="list what became of every mutant that was run")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Print the tables; 1 if a mutant was wrong and silent."""
    options = parsed(arguments)
    chosen = {name: patch for name, patch in load_patches().items() if options.patch in name}
    given = list(releases(options.release))
    trees = [Pristine(release.folders) for release in given]
    rows: list[tuple[Mutant, str]] = []
    known: dict[tuple[str, ...], tuple[str, str]] = {}
    wrong: list[str] = []
    for place, (release, tree) in enumerate(zip(given, trees, strict=True)):
        print(f"attacking: {release.name}", file=sys.stderr, flush=True)
        # The next release first: its changes are what a fork takes over in part.
        others = trees[place + 1 :] + trees[:place][::-1]
        found = [
            m
            for patch in chosen.values()
            for m in attack(patch, release, tree, others, options.seed, options.beside)
        ]
        waiting = {one.identity: one for one in found if judged(one) is None and one.identity not in known}
        if waiting:
            outcomes = run([(one, one.text(tree)) for one in waiting.values()], options.seed)
            known.update(zip(waiting, outcomes, strict=True))
        for one in found:
            outcome, why = judged(one) or known[one.identity][0], known.get(one.identity, ("", one.reason))[1]
            outcome = WRONG if outcome == NO_END else outcome
            rows.append((one, outcome))
            told = f"{outcome:7} {one.patch}, {release.name}, {one.site} ({one.where}), {one.kind}: {why}"
            if outcome == WRONG:
                wrong.append(told)
            elif options.all and one.identity in waiting:
                print(told)
    print(f"seed {options.seed}, {len(given)} releases, {len(known)} contracts run\n")
    print(table([(one.patch, outcome) for one, outcome in rows], "patch"), end="\n\n")
    print(table([(one.kind, outcome) for one, outcome in rows], "kind of mutant"), end="\n\n")
    print("\n".join([f"wrong and silent: {len(wrong)}", *wrong]))
    return int(bool(wrong) or not rows)
