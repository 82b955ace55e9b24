"""The check of each patch on a release: its contract, the one that its mutants are held to.

See `tortures/_contracts.py`. All contracts of a release run in one process with it first on the path, each in
a fork; the tests in `tests/real` and `tests/distributed` look at the same in full.
"""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

from tortures._contracts import CONTRACTS
from tortures._run_contracts import HOLDS
from tortures._start_contracts import ContractError, outcomes

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SEED = os.environ.get("OVERLAY_TEST_SEED") or str(secrets.randbelow(2**31))
PASSED = "passed"
#: Where processes that a check starts import a Megatron that cannot be imported here.
NOT_RUN = "not run: triton is not installed"


def run(folder: Path, patches: Iterable[str]) -> dict[str, str]:
    """Return `passed`, or what went wrong, for each patch that has a check on the release in a folder."""
    wanted = [patch for patch in patches if patch in CONTRACTS]
    try:
        path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        found = outcomes(path, [(patch, "", "") for patch in wanted], SEED) if wanted else []
    except ContractError as error:
        return dict.fromkeys(wanted, f"{error} (seed {SEED})")
    return {patch: _told(outcome, why) for patch, (outcome, why) in zip(wanted, found, strict=True)}


def _told(outcome: str, why: str) -> str:
    if outcome == HOLDS:
        return PASSED
    return NOT_RUN if "No module named 'triton'" in why else f"{outcome}: {why} (seed {SEED})"
