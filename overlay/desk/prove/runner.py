"""Started in a process of its own: runs contracts, each in a fork, on upstream alone or with the patch.

What takes long to import is imported once.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import warnings
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from inspect import isfunction

from overlay.desk.prove.forked import RAISES, forked
from overlay.model.settings import ALONE, PROVE
from overlay.runtime.loading import load_all
from overlay.source.registry import contract_of, module_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from overlay.patch import Contract

#: The contract was not run: a package that it needs is not installed. That is never a pass.
NOT_RUN = "not run"
#: How a contract is run, beside `ALONE`: with the patch, and so that a row may be written.
WITH, STRICTLY = "with", "strictly"


def import_before(contracts: Iterable[Contract]) -> None:
    """Import what contracts name as slow. What cannot be imported, they say themselves."""
    for name in dict.fromkeys(name for contract in contracts for name in contract.before):
        with suppress(ImportError):
            import_module(name)


def run(patch: str, how: str, seed: str, seconds: float) -> tuple[str, str]:
    """Return the outcome of one contract, and what was said."""
    contract = contract_of(patch)
    if contract is None:
        return NOT_RUN, "it has no contract"

    def work() -> str:
        os.environ[PROVE] = ALONE if how == ALONE else ""
        for name in contract.before:
            import_module(name)
        return contract.strictly(seed) if how == STRICTLY else contract.check(seed)

    outcome, why = forked(work, seconds)
    missing = re.search(r"No module named '([^']+)'", why) if outcome == RAISES else None
    if missing and ("." in missing[1] or find_spec(missing[1]) is None):
        return NOT_RUN, f"{missing[1]} is not installed"
    return outcome, why


def defect_of(patch: str) -> Callable[[str], str]:
    """Return what looks for the defect of a patch that has a contract.

    It is the function `wrong` beside the contract, if there is one, as a cure of upstream's need not give all
    that the patch promises; else all of the contract.
    """
    contract = contract_of(patch)
    found = getattr(import_module(f"{module_of(patch)}.contract"), "wrong", None)
    return found if isfunction(found) else contract.check  # type: ignore[union-attr]


def main(jobs: list[tuple[str, str]], seed: str, seconds: float) -> None:
    """Run contracts, each `(patch, how)`, and print a line of JSON for each: `[outcome, what was said]`."""
    warnings.simplefilter("ignore")
    # So that what is running is ended with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    # What a module says as it is imported is not an answer.
    answers, sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8"), sys.stderr
    os.dup2(2, 1)
    load_all()
    signal.alarm(int(seconds))
    import_before(filter(None, (contract_of(patch) for patch, _ in jobs)))
    signal.alarm(0)
    for patch, how in jobs:
        print(json.dumps(run(patch, how, seed, seconds)), file=answers, flush=True)
