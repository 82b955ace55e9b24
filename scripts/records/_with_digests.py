"""Runs a patch's contract on a release as if digests that are new there stood in the patch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from records._support_checks import PASSED, SEED
from tortures._contracts import CONTRACTS
from tortures._run_contracts import HOLDS
from tortures._start_contracts import ContractError, outcomes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: How an outcome begins that says nothing of the contract.
NOT_RUN = "not run: "


def outcome(patch: str, folder: Path, added: Sequence[Sequence[str]]) -> str:
    """Return `passed`, or what went wrong, on the release in a folder.

    Args:
        patch: Its id.
        folder: Where the release lies.
        added: Of each new source its site, the digest of the nearest known one, and its own.

    """
    if patch not in CONTRACTS:
        return "there is none"
    if CONTRACTS[patch].starts:
        return f"{NOT_RUN}it starts processes of its own, which would not see the new digests"
    try:
        ((found, why),) = outcomes([folder], [(patch, "", "", "", "", json.dumps(added))], SEED)
    except ContractError as error:
        return f"{error} (seed {SEED})"
    return PASSED if found == HOLDS else f"{found}: {why} (seed {SEED})"
