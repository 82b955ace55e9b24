"""Run the kernels, the loss, ranks on one device and the contracts here, and print one table.

    ./scripts/gpu [--seed N] [--write] [--stand-in]

With a GPU: real sizes, all contracts whose upstream is there, and the demo. Without one it is the same
program at small sizes on the CPU. Contracts and the demo have their stand-ins for CUDA in either case, and
the GPU is hidden from them.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import io
import json
import os
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
from devices import _graph, _loss

from overlay.patches._packed_loss import row_kernels
from records import figures
from sources import fetch_source
from sources.git_sources import FetchError
from tortures._contracts import CONTRACTS
from tortures._run_contracts import HOLDS
from tortures._start_contracts import ContractError, outcomes

if TYPE_CHECKING:
    import re
    from collections.abc import Iterator

    Row = tuple[str, str, str]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "gpu.md"
INSIDE = Path(__file__).resolve().parents[1] / "environment" / "inside.py"
#: By what they are known, and the one that is run without a GPU.
NAMED = {
    "megatron.recompute": "recompute",
    "verl.offload-shared-storage": "offload",
    "slime.whiten-over-cp": "whitening",
    "megatron.grad-norm": "grad norm",
}
SMALL = ("megatron.recompute",)


def main(arguments: list[str]) -> int:
    """Print the table; exit status 1 if anything is wrong, 2 if a GPU is there that this torch cannot use."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31), help="of what is drawn")
    parser.add_argument("--write", action="store_true", help="write the table into docs/gpu.md")
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
        status = _run(device, options.seed, write=options.write)
        dist.destroy_process_group()
    return status


def _run(device: str, seed: int, *, write: bool) -> int:
    """Print the table, write it where it is asked for, and return the exit status."""
    told = io.StringIO()
    right = _print(device, seed, told)
    if write:

        def fill(match: re.Match[str]) -> str:
            return match["head"] + figures.quoted(match["command"], told.getvalue()) + match["tail"]

        PAGE.write_text(figures.MARKED.sub(fill, PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0 if right else 1


def _print(device: str, seed: int, told: io.StringIO) -> bool:
    """Print all rows as they come, and return whether none is wrong."""
    name = torch.cuda.get_device_name() if device == "cuda" else "no GPU: the CPU, at small sizes"
    count = f" ({torch.cuda.device_count()} of them)" if device == "cuda" else ""
    right = True

    def say(line: str) -> None:
        told.write(line + "\n")
        print(line, flush=True)

    say(f"{name}{count}; torch {torch.__version__}, {dt.datetime.now(tz=dt.timezone.utc):%Y-%m-%d}")
    for part, what, found in _rows(device, seed):
        right = right and not found.startswith("WRONG")
        say(f"{part:<11}{what:<46}{found}")
    return right


def _rows(device: str, seed: int) -> Iterator[Row]:
    yield from _kernels(device)
    for size, name, found in _loss.rows(device, seed):
        yield "loss", f"{size:<22}{name}", found
    for name, found in _graph.rows(device, seed):
        yield "graph", f"{'captured, replayed':<22}{name}", found
    yield from _ranks(device, seed)
    yield from _contracts(device, seed)
    if device == "cuda":
        yield from _demo(seed)
    else:
        yield "demo", "verl, four ranks", "not run without a GPU: ./scripts/demo is the same"


def _kernels(device: str) -> Iterator[Row]:
    """Hold the Triton kernels to float64, where they can be run."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        against = _asked(torch.zeros(1, 8, dtype=dtype, device=device))
        wrong = against and device == "cuda"
        yield "kernels", str(dtype), f"{'WRONG: ' * bool(wrong)}{against or 'as float64 has it'}"


def _asked(flat: torch.Tensor) -> str:
    with contextlib.redirect_stderr(io.StringIO()):
        return row_kernels.against(flat)


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


def _contracts(device: str, seed: int) -> Iterator[Row]:
    """Run the contracts, upstream by upstream, with the GPU hidden."""
    wanted = sorted(CONTRACTS) if device == "cuda" else SMALL
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    try:
        for project in sorted({patch.partition(".")[0] for patch in wanted}):
            jobs = [(patch, "", "") for patch in wanted if patch.startswith(f"{project}.")]
            if project == "miles":
                yield "contract", "miles.*", "not run here: ./scripts/matrix does, on a commit of it"
                continue
            try:
                folders = [fetch_source.fetch("slime", "v0.3.1")] if project == "slime" else []
                ends = outcomes(folders, jobs, str(seed))
            except (FetchError, ContractError) as error:
                yield "contract", f"{project}.*", f"not run: {error}"
                continue
            for (patch, _, _), (outcome, why) in zip(jobs, ends, strict=True):
                known = f"{patch} ({NAMED[patch]})" if patch in NAMED else patch
                yield "contract", known, "holds" if outcome == HOLDS else f"WRONG: {outcome}: {why[:90]}"
    finally:
        os.environ.pop("CUDA_VISIBLE_DEVICES")
        if hidden is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = hidden


def _demo(seed: int) -> Iterator[Row]:
    """Run the demo, with the GPU hidden."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "demo.json"
        command = [sys.executable, str(INSIDE), "demos.dynamic_cp", "--seed", str(seed), "--json", str(out)]
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if not out.exists():
            yield "demo", "verl, four ranks", f"WRONG: {done.stderr.strip()[-100:]}"
            return
        for mode, rows in json.loads(out.read_text())["cases"].items():
            right = sum(row["verdict"] == "right" for row in rows)
            wrong = mode == "overlay" and right < len(rows)
            yield (
                "demo",
                f"verl, four ranks, {mode}",
                f"{'WRONG: ' * wrong}{right} of {len(rows)} cases right",
            )
