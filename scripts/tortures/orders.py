"""Every order of import, enable, disable, reload, import by alias and second import, up to five steps.

Each order is tried on a fake upstream, in a forked child of its own. Those of the greatest length have no
second import. See `order_world.py` for what must hold after each step.
"""

from __future__ import annotations

import argparse
import collections
import gc
import importlib
import itertools
import os
import sys
import tempfile
from pathlib import Path

from order_world import Subject, what_came, write_upstream

LETTERS = "IEDRAX"
KINDS = ("right", "reported", "idle", "wrong")
#: What need not be imported anew for each order.
WARM = ("packaging.version", "inspect", "overlay.runtime.sites", "overlay.source.source")


def words(longest: int) -> list[str]:
    """Return every word of up to so many letters; of the longest only those without a second import."""
    found = []
    for length in range(1, longest + 1):
        letters = LETTERS if length < longest else LETTERS.replace("X", "")
        found += ["".join(word) for word in itertools.product(letters, repeat=length)]
    return found


def main(arguments: list[str]) -> int:
    """Try the orders, and print how many came to what."""
    parser = argparse.ArgumentParser(description=__doc__, prog="scripts/torture orders")
    parser.add_argument("--length", type=int, default=5, help="letters of a word (default: 5)")
    given = parser.parse_args(arguments)
    os.environ["OVERLAY_LOG"] = "off"
    sys.dont_write_bytecode = True
    counts: collections.Counter[str] = collections.Counter()
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        patch = write_upstream(Path(folder))
        sys.path.insert(0, folder)
        for name in WARM:
            importlib.import_module(name)
        gc.collect()
        subject = Subject({patch.id: patch})
        for word in words(given.length):
            kind, said = what_came(word, subject)
            counts[kind] += 1
            if kind == "wrong":
                wrong.append(f"{word}: {'; '.join(said)}")
    print(f"{sum(counts.values())} orders: " + ", ".join(f"{counts[kind]} {kind}" for kind in KINDS))
    print("\nright: patched while enabled, and afterwards every attribute is the original object.")
    print("reported: the ledger said that an original is still reached. idle: a step had nothing to act on.")
    for sentence in wrong[:20]:
        print(sentence)
    return 1 if wrong else 0
