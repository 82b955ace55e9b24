"""Benchmark (d): what the start-up file costs every Python process, and what it costs to compare ranks."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from ports import free_port

from benches import _files
from benches._timing import Row, clean_environment, interpreter, run_time, summary, take_turns

ROOT = Path(__file__).resolve().parents[2]
UNSET_MS, SET_MS, AGREEMENT_MS = 1.0, 15.0, 50.0
REAL_RANKS = 8

#: Run on each real rank: how long a barrier takes, and how long it takes to compare the ranks.
RANK = """
import json, sys, time
import overlay
overlay.enable()
import torch.distributed as dist
dist.init_process_group("gloo")
overlay.agree()  # decides on the sources, which an import of Megatron would have done
turns = []
for _ in range(int(sys.argv[1])):
    for what in (dist.barrier, overlay.agree):
        dist.barrier()
        begin = time.perf_counter()
        what()
        turns.append(time.perf_counter() - begin)
print(json.dumps(turns))
dist.barrier()
"""


def make_venv(folder: Path) -> Path:
    """Make an empty virtual environment and return its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin" / "python"


def place_overlay(folder: Path) -> None:
    """Put overlay into the site-packages of a virtual environment as its wheel does."""
    (site,) = folder.glob("lib/python*/site-packages")
    _files.place(site)
    for path in (ROOT / "startup").iterdir():
        (site / path.name).symlink_to(path)


def starts(turns: int) -> list[Row]:
    """Compare interpreters of a site without overlay, and of one with its start-up file."""
    with tempfile.TemporaryDirectory() as scratch:
        empty, placed = make_venv(Path(scratch, "empty")), make_venv(Path(scratch, "placed"))
        place_overlay(Path(scratch, "placed"))
        code = "import sys; print(any(name.startswith('overlay') for name in sys.modules))"
        for environ, wanted in (({}, "False"), ({"OVERLAY": "1"}, "True")):
            command = [str(placed), *interpreter("-c", code)[1:]]
            done = subprocess.run(
                command, env={**clean_environment(), **environ}, capture_output=True, text=True, check=True
            )
            # A start that fails says so, and goes on.
            assert (done.stdout.split(), done.stderr) == ([wanted], ""), done
        rows = []
        for name, environ, target in (
            ("start, OVERLAY not set / empty site", {}, UNSET_MS),
            ("start, start-up file with OVERLAY=1 / empty site", {"OVERLAY": "1"}, SET_MS),
        ):
            commands = [[str(python), *interpreter("-c", "pass")[1:]] for python in (empty, placed)]

            def plain(command: list[str] = commands[0], environ: dict[str, str] = environ) -> float:
                return run_time(command, environ=environ)

            def other(command: list[str] = commands[1], environ: dict[str, str] = environ) -> float:
                return run_time(command, environ=environ)

            take_turns(plain, other, 3)  # warm the disk cache and the bytecode
            rows.append(summary(name, "ms", take_turns(plain, other, turns), scale=1e3, target=target))
        return rows


def real_ranks(turns: int) -> Row:
    """Compare real gloo ranks on this machine; of each turn the slowest rank counts, by the wall clock."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    place |= {"WORLD_SIZE": str(REAL_RANKS), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", RANK, str(turns)],
            env={**clean_environment(), **place, "RANK": str(rank), "OVERLAY_LOG": "warning"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(REAL_RANKS)
    ]
    try:
        printed = [process.communicate(timeout=300)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    if any(process.returncode for process in started):
        raise RuntimeError("a rank failed")
    slowest = [max(seconds) for seconds in zip(*map(json.loads, printed), strict=True)]
    pairs = list(zip(slowest[::2], slowest[1::2], strict=True))
    name = f"agreement of {REAL_RANKS} gloo ranks, wall clock / barrier"
    return summary(name, "ms", pairs, scale=1e3, target=AGREEMENT_MS, held="measured")


def measure(turns: int) -> list[Row]:
    """Measure all of it."""
    return [*starts(turns), real_ranks(turns)]
