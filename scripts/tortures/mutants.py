"""Change upstreams under every patch, and require that it is refused or stays right.

Each site of a patch's shape is changed in every way that there is (`_mutations`), on each supported release,
and so are some of the functions and names next to it. Each mutant is decided on as `overlay audit` would. If
the patch applies, its contract is run: it has to hold, or to end with an error. The patch has to apply to
mutants that change no meaning.
"""

from __future__ import annotations

import argparse
import ast
import datetime as dt
import functools
import json
import secrets
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from overlay.source.registry import load_patches
from progress import tracked
from tortures._attack import INSIDE, Attack, Mutant
from tortures._mutations import HARMLESS
from tortures._run_contracts import CONTRACTS, HOLDS, NO_END, RAISES, WRONG, outcomes
from tortures._upstreams import COUNT, Pristine, Release, releases

#: What became of a mutant, as the table's columns: the verdict is loud; the meaning is the same and the patch
#: applies; it applies, and its contract was run, or was not, as it does not hold without a change; or what
#: must not be.
LOUD, SAME, NOT_RUN = "loud", "same", "not run"
COLUMNS = (LOUD, SAME, HOLDS, RAISES, NOT_RUN, WRONG)
#: By patch, the day and the seed of its last run, how many mutants beside each shape, and how many came to
#: what. A run of all takes long, so patches are run at different times.
RECORD = Path(__file__).resolve().parents[2] / "docs" / "mutants.json"


class Row(NamedTuple):
    """A mutant, and what became of it."""

    #: Without what was changed in it, which other processes would have to be sent.
    mutant: Mutant
    #: Empty as long as its contract has to be run.
    outcome: str
    why: str
    #: The source of the module, of one whose contract has to be run.
    text: str

    def __str__(self) -> str:
        """Return all that a person wants to know of it."""
        one = self.mutant
        where = f"{one.patch}, {one.release.name}, {one.site} ({one.where}), {one.kind}"
        return f"{self.outcome:7} {where}: {self.why}"


def judged(mutant: Mutant) -> str:
    """Return what became of a mutant by its verdict alone, nothing if its contract has to be run."""
    applies, harmless = mutant.verdict == "apply", mutant.kind in HARMLESS
    if harmless:
        return SAME if applies else WRONG
    if not applies:
        return LOUD if mutant.reason else WRONG
    if mutant.where == INSIDE:
        return WRONG
    return "" if mutant.patch in CONTRACTS else NOT_RUN


@functools.cache
def _tree(folders: tuple[Path, ...]) -> Pristine:
    """Return the tree of a release, read once in a process."""
    return Pristine(folders)


def attacked(place: int, given: list[Release], options: argparse.Namespace) -> list[Row]:
    """Return the mutants of one of the releases, with the verdict on each."""
    tree = _tree(given[place].folders)
    # The next release first: its changes are what a fork takes over in part.
    near = [*given[place + 1 : place + 3], *given[max(place - 2, 0) : place][::-1]]
    others = [_tree(release.folders) for release in near]
    rows = []
    for patch in load_patches().values():
        if not any(text in patch.id for text in options.patch.split(",")):
            continue
        for one in Attack(patch, given[place], tree, others, options.seed).mutants(options.beside):
            outcome = judged(one)
            text = "" if outcome else one.text(tree)
            rows.append(Row(one._replace(old=ast.Pass(), new=[]), outcome, one.reason, text))
    return rows


def run(rows: list[Row], seed: str) -> list[Row]:
    """Return mutants, all of one release, with the outcome of each one's contract.

    The release as it is comes first, for each patch: a contract that does not hold there says nothing.
    """
    release = rows[0].mutant.release
    patches = list(dict.fromkeys(row.mutant.patch for row in rows))
    jobs = [(patch, "", "") for patch in patches]
    jobs += [(row.mutant.patch, row.mutant.module, row.text) for row in rows]
    said = outcomes(release.folders, jobs, seed)
    unfit = {
        patch: f"its contract cannot be run on {release.name}: {why or outcome}"
        for patch, (outcome, why) in zip(patches, said, strict=False)
        if outcome != HOLDS
    }
    found = []
    for row, (outcome, why) in zip(rows, said[len(patches) :], strict=True):
        # What does not end is not silent, and not right either.
        ended = WRONG if outcome == NO_END else outcome
        here = unfit.get(row.mutant.patch)
        found.append(row._replace(outcome=NOT_RUN if here else ended, why=here or why))
    return found


def table(counts: Mapping[str, Mapping[str, int]], name: str, notes: Mapping[str, str]) -> str:
    """Return counts of outcomes by patch or by kind as text in columns, and their sums.

    Args:
        counts: By what stands first in a line.
        name: What that is.
        notes: What stands at the end of a line, and under `name` at the end of the first.

    """
    heads = "".join(f"{column:>9}" for column in COLUMNS)
    lines = [f"{name:28}{'mutants':>8}{heads}{notes.get(name, '')}"]
    every = sum(map(Counter, counts.values()), Counter[str]())
    for row, count in [*sorted(counts.items()), ("all", every)]:
        numbers = "".join(f"{count.get(column, 0):9}" for column in COLUMNS)
        lines.append(f"{row:28}{sum(count.values()):8}{numbers}{notes.get(row, '')}")
    return "\n".join(lines)


def counted(pairs: Iterable[tuple[str, str]]) -> dict[str, Counter[str]]:
    """Return how often each outcome came, by what it came of."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for name, outcome in pairs:
        counts[name][outcome] += 1
    return counts


def recorded() -> str:
    """Return the record as text in columns."""
    record: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    patches = load_patches()
    known = {patch: row for patch, row in record.items() if patch in patches}
    notes = {patch: f"  {row['run']}  {row['seed']}" for patch, row in known.items()}
    counts = {patch: row["outcomes"] for patch, row in known.items()}
    text = table(counts, "patch", {"patch": "  run on      seed", **notes})
    return f"{text}\nnot run on {len(patches) - len(known)} other patches"


def write(counts: Mapping[str, Mapping[str, int]], seed: str, beside: int) -> None:
    """Record what became of the mutants of patches, by outcome, and keep the rows of all others."""
    day = dt.datetime.now(tz=dt.timezone.utc).date().isoformat()
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    for patch, count in counts.items():
        record[patch] = {"run": day, "seed": seed, "beside": beside, "outcomes": dict(sorted(count.items()))}
    rows = [f" {json.dumps(patch)}: {json.dumps(row)}" for patch, row in sorted(record.items())]
    RECORD.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


def parsed(arguments: list[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        prog="scripts/torture mutants", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--seed", default=str(secrets.randbelow(2**31)), help="default: a new one")
    parser.add_argument("--release", default="", metavar="TEXT", help="releases whose names contain it")
    parser.add_argument(
        "--patch", default="", metavar="TEXT,...", help="patches whose ids contain one of these"
    )
    parser.add_argument("--write", action="store_true", help="record what became of all mutants of a patch")
    parser.add_argument("--recorded", action="store_true", help="print the record, and run nothing")
    parser.add_argument("--beside", type=int, default=4, metavar="N", help="mutants next to each shape")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="releases at a time")
    parser.add_argument("--all", action="store_true", help="list what became of every mutant that was run")
    options = parser.parse_args(arguments)
    if options.write and options.release:
        parser.error("--write is of all releases")
    return options


def main(arguments: list[str]) -> int:
    """Print the tables; 1 if a mutant was wrong and silent, or a contract could not be run."""
    options = parsed(arguments)
    if options.recorded:
        print(recorded())
        return 0
    given = list(releases(options.release))
    if options.write and len(given) < COUNT:
        print("not written: a release is left out", file=sys.stderr)
        return 1
    count = len(given)
    with ProcessPoolExecutor(options.jobs) as pool:
        lists = pool.map(attacked, range(count), [given] * count, [options] * count)
        named = zip(given, lists, strict=True)
        rows = [row for _, found in tracked(named, lambda pair: pair[0].name) for row in found]
        print(f"{len(rows)} mutants", file=sys.stderr, flush=True)
        waiting = {row.mutant.identity: row for row in rows if not row.outcome}
        by_release: dict[str, list[Row]] = defaultdict(list)
        for row in waiting.values():
            by_release[row.mutant.release.name].append(row)
        batches = list(by_release.values())
        answers = pool.map(run, batches, [options.seed] * len(batches))
        ended = tracked(answers, lambda found: found[0].mutant.release.name)
        known = {row.mutant.identity: row for found in ended for row in found}
    done = []
    for row in rows:
        same = row if row.outcome else known[row.mutant.identity]
        done.append(row._replace(outcome=same.outcome, why=same.why))
    wrong = [str(row) for row in done if row.outcome == WRONG]
    if options.all:
        print("\n".join(str(row) for row in done if row.mutant.identity in known))
    print(f"seed {options.seed}, {count} releases, {len(known)} contracts run\n")
    by_patch = counted((row.mutant.patch, row.outcome) for row in done)
    print(table(by_patch, "patch", {}), end="\n\n")
    by_kind = counted((row.mutant.kind, row.outcome) for row in done)
    print(table(by_kind, "kind of mutant", {}), end="\n\n")
    print("\n".join([f"wrong and silent: {len(wrong)}", *wrong]))
    if options.write:
        write(by_patch, options.seed, options.beside)
    without = [row for row in done if row.outcome == NOT_RUN and row.mutant.patch in CONTRACTS]
    unfit = sorted({f"{row.mutant.patch}: {row.why}" for row in without})
    print("\n".join(unfit), end="\n" if unfit else "")
    return int(bool(wrong or unfit) or not rows)
