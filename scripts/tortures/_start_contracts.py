"""Starts a process in which contracts are run, with one release first on its path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

RUNNER = Path(__file__).with_name("_run_contracts.py")
#: Seconds for one contract, on a machine that is busy.
PATIENCE = 240


class ContractError(RuntimeError):
    """The process in which contracts are run did not end well."""


def outcomes(folders: Iterable[Path], jobs: Sequence[tuple[str, ...]], seed: str) -> list[tuple[str, str]]:
    """Return the outcome of each job of `_run_contracts`, and what was said.

    Args:
        folders: What comes first on the path, the release before what stands beside it.
        jobs: Of `_run_contracts`: patch, module and text, at least; without a module nothing is changed.
        seed: Of what the contracts draw.

    Raises:
        ContractError: The process ended before all jobs were done.

    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OVERLAY")}
    path = os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])
    # Each has its time, and what they import first has that of one.
    seconds = PATIENCE * (len(jobs) + 1)
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", str(RUNNER), seed, str(PATIENCE)],
            input="".join(json.dumps(job) + "\n" for job in jobs),
            env={**clean, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OVERLAY_LOG": "off"},
            capture_output=True, text=True, check=False, timeout=seconds,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise ContractError(f"no end within {seconds} s") from error
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise ContractError(said[-1])
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]
