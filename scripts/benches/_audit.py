"""Benchmark (c): `overlay audit` of this environment's site-packages, with verl, Megatron and torch in it.

An audit is started by hand, in a new shell or a new container: none of its files are in memory then, and what
one waits for is the disk too. So the files go out of the page cache before every turn, and the clock is the
one on the wall, whatever the other benchmarks use.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

from benches._timing import Row, clean_environment, interpreter, run_time, summary, take_turns

AUDIT = interpreter("-m", "overlay", "audit", "--json")
TARGET_MS = 1000.0
#: Whose files an audit runs or reads.
PACKAGES = ("overlay", "overlay.compat", "overlay.patches", "wrapt", "packaging", "verl", "megatron")
FOLDERS = f"""
import json
from importlib.util import find_spec
specs = [find_spec(name) for name in {PACKAGES!r}]
print(json.dumps([folder for spec in specs if spec for folder in spec.submodule_search_locations or ()]))
"""


def measure(turns: int) -> list[Row]:
    """Compare a fresh process that audits with one that does nothing."""
    done = subprocess.run(AUDIT, env=clean_environment(), capture_output=True, text=True, check=False)
    try:
        json.loads(done.stdout)  # its exit status tells what it found, so the output must tell that it worked
    except ValueError as error:
        raise RuntimeError(f"`overlay audit --json` printed no JSON:\n{done.stdout}{done.stderr}") from error
    cold = can_evict()
    if not cold:
        print("audit: this system cannot evict files from its page cache: warm", file=sys.stderr)
    paths = files() if cold else []
    empty = functools.partial(run_time, interpreter("-c", "pass"), wall=True)

    def audit() -> float:
        evict(paths)
        return run_time(AUDIT, wall=True)

    name = f"overlay audit, {'cold' if cold else 'warm'}, wall clock / empty interpreter"
    pairs = take_turns(empty, audit, turns)
    return [summary(name, "ms", pairs, scale=1e3, target=TARGET_MS, held="measured")]


def can_evict() -> bool:
    """Return whether there is a way to ask the system to forget what it holds of a file."""
    return hasattr(os, "posix_fadvise")


def files() -> list[Path]:
    """Return the modules of the packages that are concerned, source and compiled.

    A fresh interpreter says where they lie, as for an audit: this process knows of a package what has been
    imported under its name, and looks through folders that an audit does not see.
    """
    done = subprocess.run(
        interpreter("-c", FOLDERS), env=clean_environment(), stdout=subprocess.PIPE, text=True, check=True
    )
    found: set[Path] = set()
    for folder in json.loads(done.stdout):
        found.update(path for path in Path(folder).rglob("*.py*") if path.suffix in {".py", ".pyc"})
    return sorted(found)


def evict(paths: list[Path]) -> None:
    """Drop files from the page cache; what has yet to be written to the disk is written first."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
