"""Run the loss and ranks on one device here, and print one table.

    ./scripts/gpu [--seed N] [--stand-in]

With a GPU: real sizes. Without one it is the same program at small sizes on the CPU.
"""

from __future__ import annotations

import argparse
import datetime as dt
import secrets
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import one_device
import torch
import torch.distributed as dist
from devices import _loss

if TYPE_CHECKING:
    from collections.abc import Iterator

    Row = tuple[str, str, str]


def main(arguments: list[str]) -> int:
    """Print the table; exit status 1 if anything is wrong, 2 if a GPU is there that this torch cannot use."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31), help="of what is drawn")
    parser.add_argument("--stand-in", action="store_true", help="leave GPUs alone: small sizes, on the CPU")
    options = parser.parse_args(arguments)
    if not options.stand_in and not torch.cuda.is_available() and shutil.which("nvidia-smi"):
        sys.stderr.write(
            f"There is an NVIDIA GPU, and torch {torch.__version__} cannot use it. Let pip find a CUDA build "
            "of this torch, delete .venv and run this again; or say --stand-in.\n"
        )
        return 2
    device = "cuda" if torch.cuda.is_available() and not options.stand_in else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        store = dist.FileStore(str(Path(folder) / "store"), 1)  # type: ignore[attr-defined]
        dist.init_process_group("gloo" if device == "cpu" else "nccl", store=store, rank=0, world_size=1)
        right = _print(device, options.seed)
        dist.destroy_process_group()
    return 0 if right else 1


def _print(device: str, seed: int) -> bool:
    """Print each row as it comes, and return whether none is wrong."""
    name = torch.cuda.get_device_name() if device == "cuda" else "no GPU: the CPU, at small sizes"
    count = f" ({torch.cuda.device_count()} of them)" if device == "cuda" else ""
    right = True
    print(f"{name}{count}; torch {torch.__version__}, {dt.datetime.now(tz=dt.timezone.utc):%Y-%m-%d}")
    for part, what, found in _rows(device, seed):
        right = right and not found.startswith("WRONG")
        print(f"{part:<11}{what:<46}{found}", flush=True)
    return right


def _rows(device: str, seed: int) -> Iterator[Row]:
    for size, name, found in _loss.rows(device, seed):
        yield "loss", f"{size:<22}{name}", found
    yield from _ranks(device, seed)


def _ranks(device: str, seed: int) -> Iterator[Row]:
    """Let two ranks share the device."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            found = one_device.run(Path(folder), str(seed), device)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        yield "two ranks", "on one device, through gloo", f"WRONG: {error}"
        return
    for name in found[0]:
        errors = [row[name] for row in found if row[name] is not None]
        worst = max(errors, default=0.0)
        said = f"error {worst:.1e}" if errors else "all agree"
        yield "two ranks", name, f"{'WRONG: ' * (worst > one_device.TOLERANCE)}{said}"
