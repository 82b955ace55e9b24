"""Start ranks that share one device, and return what each of them found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from checks import RANKS

if TYPE_CHECKING:
    from pathlib import Path

#: Relative, of what float32 leaves.
TOLERANCE = 1e-6


def run(folder: Path, seed: str, device: str, ranks: int = 2, timeout: float = 240) -> list[dict[str, Any]]:
    """Return, by rank, the error of each case (`one_device_main`).

    Raises:
        RuntimeError: A rank ended without an answer.
        subprocess.TimeoutExpired: A rank did not end.
    """
    program, store = str(RANKS / "one_device_main.py"), str(folder / "store")
    env = {name: text for name, text in os.environ.items() if not name.startswith("OVERLAY")}
    env |= {"OVERLAY_LOG": "off", "TORCHDYNAMO_DISABLE": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", program, str(rank), str(ranks), store, seed, device],
            env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    try:
        said = [rank.communicate(timeout=timeout) for rank in started]
    finally:
        for rank in started:
            rank.kill()
    for out, error in said:
        if not out:
            raise RuntimeError(error.strip().splitlines()[-1] if error.strip() else "a rank said nothing")
    return [dict(json.loads(out.splitlines()[-1])) for out, _ in said]
