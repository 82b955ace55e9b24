"""Run with an upstream first on the path: prints what contracts find there, alone and with each patch.

    python contracts_check.py SEED PATCH...

The last line is JSON: by patch, what `wrong` of its contract says of upstream alone, what the contract says
with the patch, and the figures that the patch has counted by then, as JSON.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import tempfile
from typing import TYPE_CHECKING

from overlay.catalogue.registry import load_patches, module_of
from overlay.compat.verl_imports import stand_in
from overlay.effect import of_module
from overlay.proving.forked import HOLDS, WRONG, forked

if TYPE_CHECKING:
    from collections.abc import Callable

#: What is said of a contract that raised: that is no finding.
RAISED = "raised"
#: Seconds for each, on a machine that is busy.
PATIENCE = 240.0


def main(seed: str, *patches: str) -> None:
    """Print it."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    answers, sys.stdout = sys.stdout, sys.stderr
    load_patches()
    _import_before(patches)
    found = {}
    for patch in patches:
        module = importlib.import_module(f"{module_of(patch)}.contract")
        found[patch] = [*_asked(patch, module.wrong, seed)[:1], *_asked(patch, module.CONTRACT.check, seed)]
    answers.write(json.dumps(found) + "\n")


def _import_before(patches: tuple[str, ...]) -> None:
    """Import what takes long and no patch changes, before a process for each contract is forked."""
    if any(patch.startswith("verl.") for patch in patches):
        stand_in()
    for patch in patches:
        for name in importlib.import_module(f"{module_of(patch)}.contract").CONTRACT.before:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


def _asked(patch: str, function: Callable[[str], str], seed: str) -> list[str]:
    """Return what a function of a contract says, and the figures of the patch, in a process of its own."""
    with tempfile.TemporaryFile("w+") as figures:

        def work() -> str:
            said = str(function(seed))
            counted = of_module(module_of(patch))
            json.dump({} if counted is None else counted.values, figures)
            figures.flush()
            return said

        outcome, why = forked(work, PATIENCE)
        figures.seek(0)
        return [why if outcome in (HOLDS, WRONG) else f"{RAISED} {why}", figures.read() or "{}"]


if __name__ == "__main__":
    main(*sys.argv[1:])
