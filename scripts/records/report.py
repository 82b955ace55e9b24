"""Write the figures that `overlay report --figures FILE` draws.

    ./scripts/demo --json demo.json
    SLIME_REPO=~/slime ./scripts/matrix report --demo demo.json --slime v0.2.4 > figures.json
    overlay report -o report.html --figures figures.json

Without options: tokens of each micro-batch, and timelines of ranks under dynamic context parallelism. With
`--demo` the errors of gradients that the demo found, with `--slime` the memory of slime's loss.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benches import _partition, loss, plans

#: The case of `loss_memory_check.py` whose memory is drawn over time.
CASE = "temperature 0.8, entropy in the loss"
MEMORY = ["--tokens=2048", "--vocabulary=8192", "--turns=1", "--trace"]


def gradient_error(path: Path) -> dict[str, Any]:
    """Return the error of the gradient in each case of the demo; none where it crashed."""
    demo = json.loads(path.read_text(encoding="utf-8"))
    versions = demo["versions"]
    names = {"plain": f"verl {versions['verl']}", "overlay": "with overlay"}
    cases: dict[str, dict[str, float | None]] = {}
    for mode, rows in demo["cases"].items():
        for row in rows:
            cases.setdefault(row["case"], {})[names[mode]] = row.get("error")
    title = (
        f"Gradient under dynamic context parallelism, {demo['ranks']} ranks, "
        f"megatron-core {versions['megatron-core']}, seed {demo['seed']}"
    )
    return {"kind": "gradient-error", "title": title, "tolerance": demo["tolerance"], "cases": cases}


def memory(revision: str) -> list[dict[str, Any]]:
    """Return the peaks of slime's loss by case, and what is alive over time in one of them."""
    found = loss.run(revision, MEMORY)["cases"]
    names = {"upstream": f"slime {revision}", "overlay": "with overlay"}
    peaks = {case: {name: rows[who]["peak"] for who, name in names.items()} for case, rows in found.items()}
    unit = "sizes of the logits"
    return [
        {"kind": "memory", "title": "Peak of the loss beyond the logits", "unit": unit, "cases": peaks},
        {
            "kind": "memory-over-time",
            "title": f"Memory of the loss: {CASE}",
            "unit": unit,
            "series": {name: found[CASE][who]["trace"] for who, name in names.items()},
        },
    ]


def main(arguments: list[str]) -> int:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description="Write the figures that `overlay report --figures` draws.")
    parser.add_argument("--seed", type=int, default=_partition.SEED, help="of the drawn lengths")
    parser.add_argument("--demo", type=Path, metavar="FILE", help="what ./scripts/demo --json wrote")
    parser.add_argument("--slime", metavar="REVISION", help="a revision in SLIME_REPO, such as v0.2.4")
    options = parser.parse_args(arguments)
    _partition.SEED = options.seed
    figures = [_partition.figure()]
    figures += [gradient_error(options.demo)] if options.demo else []
    figures += memory(options.slime) if options.slime else []
    figures.append(plans.figure())
    print(json.dumps({"figures": figures}))
    return 0
