"""Started in a process of its own: runs one contract, and writes down what came of it."""

from __future__ import annotations

import json
import os
import re
import warnings
from importlib import import_module
from importlib.util import find_spec

from overlay.runtime.engine import load_all
from overlay.source.registry import contract_of

#: Nothing is wrong; something is; an exception; no end in time; the process ended without an answer; a
#: package that it needs is not installed, which is never a pass.
HOLDS, WRONG, RAISES, NO_END, CRASHED, NOT_RUN = RUN_OUTCOMES = (
    "holds", "wrong", "raises", "no end", "crashed", "not run",
)  # fmt: skip
#: Asks for `Contract.strictly`, which a row of a table needs.
STRICTLY = "strictly"
#: The most characters that are kept of a reason.
LONGEST = 300


def main(patch: str, how: str, seed: str, answer: str) -> None:
    """Write `[outcome, what was said]` as JSON into the file `answer`, and end this process."""
    warnings.simplefilter("ignore")
    try:
        load_all()
        found = _run(patch, how, seed)
    except Exception as error:  # noqa: BLE001 -- it is said
        said = f"{type(error).__name__}: {error}"[:LONGEST]
        missing = re.search(r"No module named '([^']+)'", said)
        found = RAISES, said
        if missing and ("." in missing[1] or find_spec(missing[1]) is None):
            found = NOT_RUN, f"{missing[1]} is not installed"
    with open(answer, "w", encoding="utf-8") as file:
        json.dump(found, file)
    os._exit(0)  # nothing else runs at the end of this interpreter


def _run(patch: str, how: str, seed: str) -> tuple[str, str]:
    contract = contract_of(patch)
    if contract is None:
        return NOT_RUN, "it has no contract"
    for name in contract.before:
        import_module(name)
    wrong = contract.strictly(seed) if how == STRICTLY else contract.check(seed)
    return (WRONG, wrong[:LONGEST]) if wrong else (HOLDS, "")
