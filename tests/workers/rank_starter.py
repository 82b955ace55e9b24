"""Starts ranks that differ from each other: each is a process with variables of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from ports import free_port

from overlay.compat.ranks.warm import Program

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: How a command begins that a program on the warm server, where there is one, does as well.
OWN = [sys.executable, "-W", "ignore"]


def run_ranks(command: Sequence[str], environs: Sequence[dict[str, str]], folder: Path) -> list[Any]:
    """Run a command once per rank and return what each printed as JSON; a hang is killed and a failure.

    Args:
        command: What to run. The interpreter of this process with `-W ignore` starts warm where it can.
        environs: The variables of each rank.
        folder: Where the ranks write what they say besides.
    """
    together = {"WORLD_SIZE": str(len(environs)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    placed = [{**environ, **together, "RANK": str(rank)} for rank, environ in enumerate(environs)]
    return run_each([command] * len(environs), placed, folder)


def run_each(
    commands: Sequence[Sequence[str]], environs: Sequence[dict[str, str]], folder: Path
) -> list[Any]:
    """Run a command for each of the ranks, as `run_ranks` runs one: they are given their places."""
    started: list[Program | subprocess.Popen[bytes]] = []
    printed = [folder / f"rank{rank}.out" for rank in range(len(environs))]
    said = [folder / f"rank{rank}.txt" for rank in range(len(environs))]
    results = []
    try:
        for rank, (command, environ) in enumerate(zip(commands, environs, strict=True)):
            placed = {**environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
            with printed[rank].open("wb") as out, said[rank].open("wb") as err:
                started.append(_start(command, placed, out, err, folder))
        for rank, process in enumerate(started):
            process.wait(180)
            lines = [line for line in printed[rank].read_text().splitlines() if line.startswith("{")]
            assert lines, f"rank {rank} printed nothing:\n{said[rank].read_text(errors='replace')[-3000:]}"
            results.append(json.loads(lines[-1]))
    finally:
        for process in started:
            if isinstance(process, Program):
                process.end()
                continue
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return results


def _start(
    command: Sequence[str], environ: dict[str, str], out: Any, err: Any, folder: Path
) -> Program | subprocess.Popen[bytes]:
    """Start one rank, the first process of a session of its own."""
    if [*command[:3]] == OWN:
        return Program(command[3:], environ, out, err, folder=folder)
    return subprocess.Popen(command, env=environ, stdout=out, stderr=err, start_new_session=True, cwd=folder)
