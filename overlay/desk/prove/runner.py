"""Started in a process of its own: runs contracts, each in a fork, on upstream alone or with the patch.

    python -m overlay.desk.prove.runner SEED SECONDS < JOBS

A job is a line of JSON, `[patch, how]`. Prints a line of JSON for each, `[outcome, what was said]`, after one
that says that everything is imported. What takes long to import is imported once.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import warnings
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
#: The first line that is printed.
READY = "ready"

_MISSING = re.compile(r"No module named '([^']+)'")


def import_before(contracts: Iterable[Contract]) -> str:
    """Import what contracts name as slow, and return the first of it that is not installed, empty if none."""
    missing = ""
    for name in dict.fromkeys(name for contract in contracts for name in contract.before):
        try:
            import_module(name)
        except ModuleNotFoundError as error:  # noqa: PERF203 -- each of them is asked for
            missing = missing or error.name or name
        except ImportError:
            continue  # which the contract says, if it is of any importance to it
    return missing


def run(patch: str, how: str, seed: str, seconds: float) -> tuple[str, str]:
    """Return the outcome of one contract, and what was said."""

    def work() -> str:
        os.environ[PROVE] = ALONE if how == ALONE else ""
        contract = contract_of(patch)
        if contract is None:
            raise LookupError(f"{patch} has no contract")
        return contract.strictly(seed) if how == STRICTLY else contract.check(seed)

    outcome, why = forked(work, seconds)
    missing = _MISSING.search(why) if outcome == RAISES else None
    if missing is not None and _is_absent(missing[1]):
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


def _is_absent(module: str) -> bool:
    """Return whether a module, or a package that it is in, cannot be found. Nothing is imported for it."""
    top = module.partition(".")[0]
    try:
        return find_spec(top) is None or "." in module
    except (ImportError, ValueError):
        return True


def main(seed: str, seconds: str) -> None:
    """Run what comes in."""
    warnings.simplefilter("ignore")
    # So that what is running is ended with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    # What a module says as it is imported is not an answer.
    answers, sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8"), sys.stderr
    os.dup2(2, 1)
    load_all()
    jobs = [json.loads(line) for line in sys.stdin]
    found = (contract_of(patch) for patch in dict.fromkeys(patch for patch, _ in jobs))
    missing = import_before(contract for contract in found if contract is not None)
    answers.write(json.dumps([READY, missing]) + "\n")
    answers.flush()
    for patch, how in jobs:
        outcome = (
            (NOT_RUN, f"{missing} is not installed") if missing else run(patch, how, seed, float(seconds))
        )
        answers.write(json.dumps(outcome) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
