"""Starts ranks that differ from each other: each is a process with variables of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any

from overlay.compat.ranks.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def run_ranks(command: Sequence[str], environs: Sequence[dict[str, str]], folder: Path) -> list[Any]:
    """Run a command once per rank and return what each printed as JSON; a hang is killed and a failure.

    Args:
        command: What to run.
        environs: The variables of each rank.
        folder: Where the ranks write what they say besides.
    """
    port = str(free_port())
    started = []
    for rank, environ in enumerate(environs):
        place = {"RANK": str(rank), "WORLD_SIZE": str(len(environs)), "OMP_NUM_THREADS": "1"}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
        with (folder / f"rank{rank}.txt").open("wb") as stream:
            started.append(
                subprocess.Popen(
                    command, env={**environ, **place}, stdout=subprocess.PIPE, stderr=stream, text=True,
                    start_new_session=True, cwd=folder,
                )
            )  # fmt: skip
    results = []
    try:
        for rank, process in enumerate(started):
            printed, _ = process.communicate(timeout=180)
            lines = [line for line in printed.splitlines() if line.startswith("{")]
            said = (folder / f"rank{rank}.txt").read_text(errors="replace")
            assert lines, f"rank {rank} printed nothing:\n{said[-3000:]}"
            results.append(json.loads(lines[-1]))
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
    return results
