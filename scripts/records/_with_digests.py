"""Runs a patch's contract on a release as if digests that are new there stood in the patch.

In a process of its own, with the release first on the path.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from overlay.catalogue.registry import load_patches, module_of
from overlay.patch import Known
from records import _support_checks
from tortures._contracts import CONTRACTS
from tortures._start_contracts import PATIENCE

SCRIPTS = Path(__file__).resolve().parents[1]
_SHARED = [str(SCRIPTS), *(str(SCRIPTS / "checks" / name) for name in ("upstreams", "ranks"))]
#: How an outcome begins that says nothing of the contract.
NOT_RUN = "not run: "
_CODE = "import sys; from records import _with_digests; _with_digests.main(*sys.argv[1:])"

if TYPE_CHECKING:
    from collections.abc import Sequence

    from overlay.patch import Patch

    #: Site, the digest of its nearest known source, and the new one.
    Added = Sequence[tuple[str, str, str]]


def outcome(patch: str, folder: Path, added: Added) -> str:
    """Return `passed`, or what went wrong, on the release in a folder."""
    if patch not in CONTRACTS:
        return "there is none"
    if CONTRACTS[patch].starts:
        return f"{NOT_RUN}it starts processes of its own, which would not see the new digests"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OVERLAY")}
    path = os.pathsep.join([str(folder), *_SHARED])
    words = [patch, _support_checks.SEED, json.dumps(list(added))]
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _CODE, *words],
            env={**clean, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OVERLAY_LOG": "off"},
            cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"no end within {PATIENCE} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    wrong = json.loads(done.stdout.splitlines()[-1])
    return f"wrong: {wrong} (seed {_support_checks.SEED})" if wrong else _support_checks.PASSED


def widened(patch: Patch, added: Added) -> Patch:
    """Return the patch with each new digest in all conditions that have the known one at its site."""

    def wider(condition: object) -> object:
        if not isinstance(condition, Known):
            return condition
        near = [new for site, old, new in added if site == condition.site and old in condition.digests]
        return condition.replace(digests=(*condition.digests, *near))

    return patch.replace(
        targets=tuple(
            target.replace(
                variants=tuple(
                    variant.replace(shape=tuple(map(wider, variant.shape))) for variant in target.variants
                )
            )
            for target in patch.targets
        )
    )


def main(patch: str, seed: str, added: str) -> None:
    """Put the wider patch where the registry finds it, run the contract, and print what is wrong as JSON."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    found = load_patches()[patch]
    vars(sys.modules[module_of(patch)])["PATCH"] = widened(found, json.loads(added))
    said, sys.stdout = sys.stdout, sys.stderr
    wrong = CONTRACTS[patch].check(seed)
    said.write(json.dumps(wrong) + "\n")
