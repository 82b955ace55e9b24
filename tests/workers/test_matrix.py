"""Every kind of process runs the same patches, each of them a real one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from worksite import ARMED, PATCHED, PLAIN, clean_environment

if TYPE_CHECKING:
    from worksite import Venv

HERE = Path(__file__).parent
KINDS = {
    "main",
    "fork",
    "subprocess of a subprocess",
    *(
        f"{kind} {method}"
        for kind in ("multiprocessing", "pool")
        for method in ("fork", "spawn", "forkserver")
    ),
}


@pytest.mark.parametrize("armed", [True, False])
def test_every_kind_of_process(worksite: Venv, armed: bool) -> None:
    done = worksite.run("-W", "ignore", str(HERE / "probe.py"), **(ARMED if armed else {}))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == KINDS
    assert set(found.values()) == {int(PATCHED if armed else PLAIN)}, found


def test_ranks_of_torchrun(worksite: Venv, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [str(worksite.python), "-m", "overlay", "run", "--patches", "acme/*", "--"]
    command += [str(worksite.python), "-W", "ignore", *launcher, str(HERE / "probe.py"), "rank"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env=clean_environment(OVERLAY_PACKS="acme", OMP_NUM_THREADS="1"), cwd=tmp_path,
    )  # fmt: skip
    try:
        printed, said = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    lines = sorted(line for line in printed.splitlines() if line.startswith("rank "))
    assert lines == [f"rank 0: {PATCHED}", f"rank 1: {PATCHED}"], said
