"""Run with an upstream first on the path: prints what contracts find there, on it alone and with each patch.

    python contracts_check.py SEED PATCH...

With `PATCH=alone` or `PATCH=with` the contract is run on upstream alone, or with the patch, and no more.
The last line is JSON: by patch, what becomes of its contract on the upstream alone and with the patch, as
`contract_runs` says it, the figures that the patch has counted by then, and what becomes of the
contract with the patch and all that `all` selects.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable

from contract_runs import defect_of, forked, import_before

from overlay.compat.verl_imports import stand_in
from overlay.desk.prove.prove import STRICTLY
from overlay.effect import effect_of
from overlay.model.settings import ALONE, COMPANY, PROVE
from overlay.source.registry import contract_of, load_patches, module_of

#: Seconds for each, on a machine that is busy.
PATIENCE = 240.0


def main(seed: str, *asked: str) -> None:
    """Print it."""
    only = {patch: how for patch, _, how in (one.partition("=") for one in asked)}
    answer(tuple(only), lambda patch: _outcomes(patch, seed, only[patch]))


def answer(patches: tuple[str, ...], ask: Callable[[str], object]) -> None:
    """Print what is found of each patch, as JSON, with what its contract needs imported before."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    answers, sys.stdout = sys.stdout, sys.stderr
    load_patches()
    # What takes long and no patch changes is imported before a process for each contract is forked.
    if any(patch.startswith("verl.") for patch in patches):
        stand_in()
    import_before(filter(None, map(contract_of, patches)))
    answers.write(json.dumps({patch: ask(patch) for patch in patches}) + "\n")


def _outcomes(patch: str, seed: str, only: str) -> list[object]:
    alone = None if only == "with" else _run(patch, ALONE, seed)[0]
    ours = (None, None) if only == "alone" else _run(patch, STRICTLY, seed)
    return [alone, *ours, None if only else _run(patch, COMPANY, seed)[0]]


def _run(patch: str, how: str, seed: str) -> tuple[tuple[str, str], dict[str, float]]:
    """Return what becomes of a contract in a process of its own, and the figures of the patch there."""
    with tempfile.TemporaryFile("w+") as figures:

        def work() -> str:
            os.environ[PROVE] = how if how in (ALONE, COMPANY) else ""
            contract = contract_of(patch)
            assert contract is not None
            # On upstream alone it is the defect that is looked for: a cure need not give all that the patch
            # promises. With the patch that is asked, and what it would undo of what upstream has right.
            # In company upstream alone is no measure: another patch may change what this one leaves as it is.
            asked = {ALONE: defect_of(patch), COMPANY: contract.check}.get(how, contract.strictly)
            said = asked(seed)
            counted = effect_of(module_of(patch))
            json.dump({} if counted is None else counted.values, figures)
            figures.flush()
            return said

        outcome = forked(work, PATIENCE)
        figures.seek(0)
        return outcome, json.loads(figures.read() or "{}")


if __name__ == "__main__":
    main(*sys.argv[1:])
