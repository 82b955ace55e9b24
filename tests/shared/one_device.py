"""Start ranks that share one device, and return what each of them found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from checks import RANKS
from command_line import clean

from overlay.compat.ranks.warm import Program

#: Relative, of what float32 leaves.
TOLERANCE = 1e-6


def run(folder: Path, seed: str, device: str, ranks: int = 2, timeout: float = 240) -> list[dict[str, Any]]:
    """Return, by rank, the error of each case (`one_device_main`).

    Raises:
        RuntimeError: A rank ended without an answer.
        subprocess.TimeoutExpired: A rank did not end.
    """
    program, store = str(RANKS / "one_device_main.py"), str(folder / "store")
    env = clean(OVERLAY_LOG="off", TORCHDYNAMO_DISABLE="1")
    started: list[Program] = []
    streams = [(folder / f"rank{rank}.out", folder / f"rank{rank}.err") for rank in range(ranks)]
    try:
        for rank, (out, err) in enumerate(streams):
            with out.open("wb") as printed, err.open("wb") as said:
                command = [program, str(rank), str(ranks), store, seed, device]
                started.append(Program(command, env, printed, said))
        for one in started:
            one.wait(timeout)
    finally:
        for one in started:
            one.end()
    found = []
    for out, err in streams:
        lines = out.read_text(encoding="utf-8").splitlines()
        if not lines:
            wrong = err.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise RuntimeError(wrong[-1] if wrong else "a rank said nothing")
        found.append(dict(json.loads(lines[-1])))
    return found
