"""Show what a job of two gloo ranks writes into its log: torchrun, and the process groups of Megatron.

scripts/demo log
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

JOB = """
import os
import overlay

overlay.enable()

os.environ["TORCHDYNAMO_DISABLE"] = "1"
import torch.distributed as dist
from overlay.compat.no_triton import no_triton

with no_triton():
    from megatron.core import parallel_state
dist.init_process_group("gloo")
parallel_state.initialize_model_parallel()
dist.barrier()
dist.destroy_process_group()
"""
PATIENCE = 300


def main(arguments: list[str] | None = None) -> int:
    """Run the job, print the lines of overlay, and return the exit code of the job."""
    argparse.ArgumentParser(prog="scripts/demo log", description=__doc__).parse_args(arguments)
    kept = {name: text for name, text in os.environ.items() if not name.startswith("OVERLAY")}
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(JOB, encoding="utf-8")
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        done = subprocess.run(
            [*launcher, str(script)], env={**kept, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
            timeout=PATIENCE, check=False,
        )  # fmt: skip
    for line in done.stderr.splitlines():
        if line.startswith("overlay: "):
            print(line)
    return done.returncode
