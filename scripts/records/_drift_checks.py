"""Runs the contracts of patches on commits of a history, each unpacked for the time.

See `overlay.patch.Contract`. A release that is needed beside them is fetched.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overlay.catalogue.registry import load_patches
from progress import tracked
from sources.git_sources import git, unpack
from tortures._contracts import CONTRACTS
from tortures._run_contracts import HOLDS
from tortures._start_contracts import ContractError, outcomes

KEPT = Path(__file__).resolve().parents[2] / ".cache" / "drift-contracts.json"

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    #: Sites and digests.
    Digests = tuple[tuple[str, str], ...]


def run(
    repository: Path,
    project: str,
    paths: Sequence[str],
    sources: Mapping[str, Sequence[tuple[str, Digests]]],
    seed: str,
) -> dict[str, dict[str, Any]]:
    """Return for each patch on how many sources its contract was run, and where it did not hold.

    What was run is kept in `.cache`, so that it is not run again at the same revision of the patch.

    Args:
        repository: A git repository.
        project: What is in it.
        paths: What of a commit is unpacked.
        sources: Of each patch, the first commit with each source that it applies to.
        seed: Of what the contracts draw.

    """
    kept: dict[str, list[str]] = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    keys = {
        (patch, commit): " ".join((patch, str(load_patches()[patch].revision), repr(digests)))
        for patch, found in sources.items()
        for commit, digests in found
        if patch in CONTRACTS
    }
    by_commit: dict[str, list[str]] = {}
    for (patch, commit), key in keys.items():
        if key not in kept:
            by_commit.setdefault(commit, []).append(patch)
    for commit, patches in tracked(by_commit.items(), lambda one: f"{project} {one[0][:9]}"):
        with tempfile.TemporaryDirectory(prefix="drift-") as folder:
            here = git("-C", str(repository), "ls-tree", "--name-only", commit, "--", *paths).decode().split()
            unpack(git("-C", str(repository), "archive", "--format=tar", commit, *here), Path(folder))
            for patch, (outcome, why) in zip(patches, _outcomes(Path(folder), patches, seed), strict=True):
                kept[keys[patch, commit]] = [outcome, why]
        KEPT.parent.mkdir(exist_ok=True)
        KEPT.write_text(json.dumps(kept, indent=1), encoding="utf-8")
    told: dict[str, dict[str, Any]] = {
        patch: {"run": 0, "wrong": []} for patch in sources if patch in CONTRACTS
    }
    for (patch, commit), key in keys.items():
        outcome, why = kept[key]
        told[patch]["run"] += 1
        if outcome != HOLDS:
            told[patch]["wrong"].append(f"{commit[:9]}: {outcome}: {why}")
    return told


def _outcomes(folder: Path, patches: list[str], seed: str) -> list[tuple[str, str]]:
    try:
        return outcomes([folder], [(patch, "", "") for patch in patches], seed)
    except ContractError as error:
        return [("raises", str(error))] * len(patches)
