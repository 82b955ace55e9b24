"""The check of each patch on a release: its contract, the one that its mutants are held to.

See `overlay.patch.Contract`. All contracts of a release run in one process with it first on the path, each in
a fork; the tests in `tests/real` and `tests/distributed` look at the same in full.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from typing import TYPE_CHECKING

from checks import triton_on_cpu
from sources import fetch_release
from tortures._contracts import CONTRACTS
from tortures._run_contracts import HOLDS
from tortures._start_contracts import ContractError, outcomes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

SEED = os.environ.get("OVERLAY_TEST_SEED") or str(secrets.randbelow(2**31))
PASSED = "passed"
#: What Megatron imports from 0.18 on. A stand-in is enough in one process (`overlay.compat.no_triton`); the
#: processes that a check starts for itself, such as Ray's workers, need the real one, and run nothing of it.
TRITON = triton_on_cpu.TRITON
#: How an outcome begins that says nothing of the contract, and one of them.
LEFT = "not run: "
NOT_RUN = f"{LEFT}triton is not installed"


def run(folder: Path, patches: Iterable[str]) -> dict[str, str]:
    """Return `passed`, or what went wrong, for each patch that has a check on the release in a folder."""
    wanted = [patch for patch in patches if patch in CONTRACTS]
    try:
        told = _run([folder], wanted)
        without = [patch for patch, said in told.items() if said == NOT_RUN]
        with contextlib.suppress(fetch_release.FetchError):
            told |= _run([folder, fetch_release.fetch(TRITON)], without) if without else {}
    except ContractError as error:
        return dict.fromkeys(wanted, f"{error} (seed {SEED})")
    return told


def _run(folders: list[Path], wanted: list[str]) -> dict[str, str]:
    """Return the same with folders first on the path."""
    found = outcomes(folders, [(patch, "", "") for patch in wanted], SEED) if wanted else []
    return {patch: _told(outcome, why) for patch, (outcome, why) in zip(wanted, found, strict=True)}


def with_digests(patch: str, folder: Path, added: Sequence[Sequence[str]]) -> str:
    """Return the same of one patch, as if digests that are new on the release stood in it.

    Args:
        patch: Its id.
        folder: Where the release lies.
        added: Of each new source its site, the digest of the nearest known one, and its own.

    """
    if patch not in CONTRACTS:
        return "there is none"
    if CONTRACTS[patch].starts:
        return f"{LEFT}it starts processes of its own, which would not see the new digests"
    try:
        (found,) = outcomes([folder], [(patch, "", "", "", "", json.dumps(added))], SEED)
    except ContractError as error:
        return f"{error} (seed {SEED})"
    return _told(*found)


def _told(outcome: str, why: str) -> str:
    if outcome == HOLDS:
        return PASSED
    return NOT_RUN if "No module named 'triton'" in why else f"{outcome}: {why} (seed {SEED})"
