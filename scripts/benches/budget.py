"""Divide batches with verl's `rearrange_micro_batches`: as released, with overlay, and as verl 0.9.1 does it.

The installed verl runs twice, and 0.9.1 (fetched by `fetch_release.py`) as the judge, each in a process of
its own, on the same batches. `over` counts micro-batches over the limit; `work` is the most attention and
matrix work of a micro-batch, over the mean; `asked` is how often a rank waits for the others.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

from benches import _program
from environment import inside
from sources import fetch_release

JUDGE = "0.9.1"


def batches(seed: int) -> dict[str, tuple[list[int], int]]:
    """Return the tokens of each sample of each batch, and the limit."""
    draw = random.Random(seed)  # noqa: S311 -- samples, not secrets
    return {
        "8 x 7": ([7] * 8, 8),
        "16 x 30,720": ([30720] * 16, 32768),
        "512 lognormal": ([min(16384, int(draw.lognormvariate(7.6, 0.8)) + 1) for _ in range(512)], 16384),
        "512 x ~limit/2": ([draw.randint(7500, 9000) for _ in range(512)], 16384),
    }


def divide(seed: int) -> dict[str, Any]:
    """Return what the verl on the path makes of each batch, with the patches of the environment."""
    import overlay

    overlay.enable()

    import torch
    import torch.distributed as dist
    from tensordict import TensorDict
    from torch._C._distributed_c10d import HashStore
    from verl.utils import seqlen_balancing

    # One rank asks as often as many do.
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    seqlen_balancing.get_device_name = lambda: "cpu"
    asked: list[None] = []
    all_reduce = dist.all_reduce

    def counted(*args: Any, **options: Any) -> Any:
        asked.append(None)
        return all_reduce(*args, **options)

    dist.all_reduce = counted
    found = {}
    for name, (lengths, limit) in batches(seed).items():
        offsets = torch.tensor([0, *lengths]).cumsum(0)
        ids = torch.nested.nested_tensor_from_jagged(torch.zeros(int(offsets[-1]), dtype=torch.int8), offsets)
        batch = TensorDict({"input_ids": ids}, batch_size=[len(lengths)])
        asked.clear()
        _, indices = seqlen_balancing.rearrange_micro_batches(batch, limit, dp_group=dist.group.WORLD)
        tokens = [sum(lengths[sample] for sample in samples) for samples in indices]
        work = [sum(24576 * lengths[i] + lengths[i] ** 2 for i in samples) for samples in indices]
        found[name] = {
            "micro-batches": len(indices),
            "over": sum(total > limit for total in tokens),
            "largest": max(tokens),
            "work": max(work) * len(work) / sum(work),
            "asked": len(asked),
        }
    dist.destroy_process_group()
    return found


def run(seed: int, patches: str, release: Path | None = None) -> dict[str, Any]:
    """Return what `divide` finds in a process of its own."""
    asked = ("benches.budget", f"--seed={seed}", "--divide")
    settings = {"OVERLAY_PATCHES": patches, "OVERLAY_LOG": "off"}
    return dict(_program.found(Path(str(inside.__file__)), *asked, release=release, **settings))


def main(arguments: list[str]) -> int:
    """Print the table; exit status 1 if overlay exceeds a limit, or takes more than the judge."""
    parser = argparse.ArgumentParser(description="Divide batches with and without overlay.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--divide", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.divide:
        print(json.dumps(divide(options.seed)))
        return 0
    from importlib.metadata import version

    installed = f"verl {version('verl')}"
    judge = run(options.seed, "none", fetch_release.fetch(f"verl=={JUDGE}"))
    rows = {
        f"{installed} as released": run(options.seed, "none"),
        f"{installed} with overlay": run(options.seed, "verl.strict-token-budget,verl.fast-partitioner"),
        f"verl {JUDGE} as released": judge,
    }
    print(
        f"{'batch':<17}{'limit':>7}  {'':<25}{'micro-batches':>14}"
        f"{'over':>6}{'largest':>9}{'work':>7}{'asked':>7}"
    )
    good = True
    for name, (_, limit) in batches(options.seed).items():
        for who, results in rows.items():
            row = results[name]
            print(
                f"{name:<17}{limit:>7}  {who:<25}{row['micro-batches']:>14}"
                f"{row['over']:>6}{row['largest']:>9}{row['work']:>7.2f}{row['asked']:>7}"
            )
            if "overlay" in who:
                good = good and not row["over"] and row["micro-batches"] <= judge[name]["micro-batches"]
    return 0 if good else 1
