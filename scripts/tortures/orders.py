"""Every order of import, enable, disable, reload, import by alias and second import, up to five steps.

Each order is tried in a forked child of its own: on a fake upstream all of them (with a second import up to
four steps), on modules of verl and Megatron some. See `order_world.py` for what must hold
after each step.
"""

from __future__ import annotations

import argparse
import collections
import gc
import importlib
import itertools
import os
import random
import secrets
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from order_subjects import Balancing, Recompute
from order_world import Subject, what_came, write_upstream

if TYPE_CHECKING:
    from collections.abc import Iterable

LETTERS = "IEDRAX"
KINDS = ("right", "reported", "idle", "wrong")
#: What the real modules import, which need not be imported anew for each order.
WARM = ("torch", "tensordict", "verl.protocol", "verl.utils.tensordict_utils", "verl.utils.device", "wrapt")
WARM_ALWAYS = ("packaging.version", "inspect", "overlay.runtime.sites", "overlay.source.source")


def words(longest: int) -> list[str]:
    """Return every word of up to so many letters; of the longest only those without a second import."""
    found = []
    for length in range(1, longest + 1):
        letters = LETTERS if length < longest else LETTERS.replace("X", "")
        found += ["".join(word) for word in itertools.product(letters, repeat=length)]
    return found


def row(name: str, subject: Subject, tried: Iterable[str]) -> list[str]:
    """Try words on a subject, print the line of the table, and return the sentences on what is wrong."""
    counts: collections.Counter[str] = collections.Counter()
    wrong = []
    for word in tried:
        kind, said = what_came(word, subject)
        counts[kind] += 1
        if kind == "wrong":
            wrong.append(f"{name}, {word}: {'; '.join(said)}")
    print(f"{name:40}{sum(counts.values()):8}" + "".join(f"{counts[kind]:10}" for kind in KINDS), flush=True)
    return wrong


def main(arguments: list[str]) -> int:
    """Try the orders, and print how many came to what."""
    parser = argparse.ArgumentParser(description=__doc__, prog="scripts/torture orders")
    parser.add_argument("--length", type=int, default=5, help="letters of a word (default: 5)")
    parser.add_argument("--real", type=int, default=20, help="words for each real module (default: 20)")
    given = parser.parse_args(arguments)
    seed = os.environ.get("OVERLAY_TEST_SEED") or str(secrets.randbelow(2**31))
    os.environ["OVERLAY_LOG"] = "off"
    sys.dont_write_bytecode = True
    every = words(given.length)
    print(f"OVERLAY_TEST_SEED={seed} (which orders are tried on the real modules)")
    print("\n" + " " * 40 + f"{'orders':>8}" + "".join(f"{kind:>10}" for kind in KINDS))
    with tempfile.TemporaryDirectory() as folder:
        patch = write_upstream(Path(folder))
        sys.path.insert(0, folder)
        _warm(WARM_ALWAYS)
        wrong = row("fake upstream, 5 sites", Subject({patch.id: patch}), every)
    if given.real:
        _warm(WARM)
    real: list[Subject] = [Balancing(), Recompute()] if given.real else []
    for subject in real:
        tried = random.Random(f"{seed}/{subject.module}").sample(every, given.real)
        wrong += row(subject.module, subject, tried)
    print("\nright: patched while enabled, and afterwards every attribute is the original object.")
    print(
        "reported: the ledger said that an original is still reached. idle: a step had nothing to be done to."
    )
    for sentence in wrong[:20]:
        print(sentence)
    return 1 if wrong else 0


def _warm(names: Iterable[str]) -> None:
    for name in names:
        importlib.import_module(name)
    gc.collect()
