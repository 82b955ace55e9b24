"""Make slips in our own code, and print which of them `./scripts/test --quick` catches.

The slips are data (`own_mutants.toml`), found by their text, so that code may move. Each is made in a copy of
the checkout. What is caught is caught by a test that fails there and passes without the slip. The files that
mirror the code run first; the rest of the quick tests only if those let it pass. A slip that the quick tests
miss has to be caught by all tests of the files that mirror the code.

A mutation tester such as mutmut changes operators and constants, thousands of them, each at the price of a
test run. Most slips here put one expression in the place of another, which it never makes.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from testing.suite import QUICK, WORKERS
from tortures._own_copy import Copy

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = Path(__file__).with_name("own_mutants.toml")
#: Seconds for a run of tests that a slip may have made wait for ever.
LIMIT = 600.0


class Slip(NamedTuple):
    """One slip: what is wrong, where, and which test files mirror that code."""

    defect: str
    old: str
    new: str
    tests: tuple[str, ...]


class Row(NamedTuple):
    """A slip, and the first test that failed of the quick ones, and of those of its files; empty for none."""

    slip: Slip
    quick: str
    full: str


def slips(only: str = "") -> list[Slip]:
    """Return the slips whose defect contains a text."""
    found = tomllib.loads(FILE.read_text(encoding="utf-8"))["mutant"]
    made = [Slip(**{**one, "tests": tuple(one["tests"])}) for one in found]
    return [slip for slip in made if only in slip.defect]


def quick_part(files: list[str]) -> list[str]:
    """Return the arguments of the quick run for those of some test files that it looks at."""
    paths = [argument for argument in QUICK if argument.startswith("tests")]
    inside = [file for file in files if any(Path(file).is_relative_to(path) for path in paths)]
    return [*(argument for argument in QUICK if argument not in paths), *inside] if inside else []


def judged(copy: Copy, slip: Slip) -> Row:
    """Make a slip in a copy, and return what caught it."""
    files = copy.tests(slip.tests)
    part = quick_part(files)
    with copy.changed(slip.old, slip.new):
        near = copy.pytest(part, LIMIT).failed if part else ""
        if near:
            return Row(slip, near, near)
        return Row(slip, copy.pytest(QUICK, LIMIT).failed, copy.pytest(files, LIMIT).failed)


def parsed(arguments: list[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        prog="scripts/torture own", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="slips of which the defect has it")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="slips at a time")
    parser.add_argument("--all", action="store_true", help="name the test that caught each slip")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Print the table; 1 if a slip is caught by no test, or the quick tests catch less than nine of ten."""
    options = parsed(arguments)
    given = slips(options.only)
    os.environ["TESTS_ONCE"] = "1"  # as by day
    with tempfile.TemporaryDirectory(prefix="overlay-own-") as folder:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(options.jobs):
            copies.put(Copy(Path(folder) / str(number)))
        copy = copies.get()
        start = time.monotonic()
        plain = copy.pytest([*WORKERS, *QUICK], LIMIT)
        if plain.failed:
            print(f"{plain.output}\nthe quick tests fail where nothing was changed: {plain.failed}")
            return 1
        print(f"the quick tests took {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
        copies.put(copy)

        def judge(slip: Slip) -> Row:
            copy = copies.get()
            try:
                row = judged(copy, slip)
            finally:
                copies.put(copy)
            if options.all or not row.quick:
                caught = [f"    quick: {row.quick or '-'}", f"    all:   {row.full or '-'}"]
                print("\n".join([slip.defect, *caught]), file=sys.stderr, flush=True)
            return row

        with ThreadPoolExecutor(options.jobs) as pool:
            rows = list(pool.map(judge, given))
    missed = [row for row in rows if not row.quick]
    print(
        f"{len(rows)} slips\nmissed by --quick: {len(missed)}",
        *(f"  {row.slip.defect}" for row in missed),
        sep="\n",
    )
    lost = [row for row in missed if not row.full]
    print(f"caught by no test: {len(lost)}", *(f"  {row.slip.defect}" for row in lost), sep="\n")
    return int(bool(lost) or len(missed) * 10 > len(rows))
