"""slime.loss-memory on real gloo ranks: slime's own loss, in every release, under each kind of parallelism."""

from __future__ import annotations

import functools
import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from rank_launcher import run_cases

pytestmark = [pytest.mark.distributed, pytest.mark.real]

ROOT = Path(__file__).parents[2]
SEED = os.environ.setdefault("OVERLAY_TEST_SEED", str(secrets.randbelow(2**31)))

RELEASES = ("v0.2.0", "v0.2.1", "v0.2.2", "v0.2.3", "v0.2.4", "v0.3.0", "v0.3.1")
#: #1788 and #1822.
COMMITS = ("2a89c169c", "2928bba9d")


@functools.cache
def folder_of(revision: str) -> tuple[Path | None, str]:
    """Return the folder of a revision of slime, or why it cannot be had."""
    command = [sys.executable, str(ROOT / "scripts" / "fetch_slime.py"), revision]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)
    return (Path(done.stdout.strip()), "") if done.returncode == 0 else (None, done.stderr.strip())


@functools.cache
def results(revision: str, module: str = "loss_memory_cases", *, overlay: bool = True) -> dict[str, list[Any]]:
    """Return what four ranks found. They are started once for each revision."""
    folder, reason = folder_of(revision)
    if folder is None:
        pytest.skip(reason)
    path = [str(folder), str(ROOT / "tests" / "real"), os.environ.get("PYTHONPATH", "")]
    environment = {
        "OVERLAY_PATCHES": "slime.loss-memory" if overlay else "none",
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
    }
    with tempfile.TemporaryDirectory() as scratch:
        return run_cases(4, module, Path(scratch), main="slime_main.py", environment=environment, timeout=300)
