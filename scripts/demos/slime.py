"""Let slime's real actor train a tiny model for a step, without overlay and with it, and compare.

    ./scripts/demo slime [--json FILE] [--seed N] [--release v0.2.4 ...]

`MegatronTrainRayActor` of slime v0.2.4 and v0.3.1, each with its own Megatron under slime's diff, on gloo
ranks on the CPU. One process in float64 says what advantages and gradients are. Both are fetched the first
time, from the network or from what SLIME_REPO and MEGATRON_REPO name: clones, or files of `git bundle`.

Exit code: 0 if every case comes to what is claimed of it, 1 if not.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from slime_step import TOLERANCE, Row, cases_of, run, unlike_claimed

from sources import slime_images
from sources.git_sources import FetchError

MODES = {"plain": "slime {} as released", "overlay": "slime {} with overlay"}
LEGEND = """\
over budget: micro-batches over max_tokens_per_gpu, out of how many, and the worst excess.
A: advantages; g: gradient; relative errors against one process in float64.
W: weights sent to the engines, first or in two rollouts; largest difference from the actor's.
peak: bytes that a step held at once; unit: float32 logits of a rank's largest micro-batch.
Not run: kernels (CUDA, Triton, Transformer Engine), NCCL, checkpoints, offloading, SGLang's engines, experts
on several ranks, allgather context parallelism, what a critic sends an actor. Errors are measured
in float32, memory in slime's bfloat16."""
#: Of a verdict in the table: what was raised may be a long story.
WIDTH = 70
HEAD = ("case", "over budget", "error of A", "error of g", "error of W", "peak", "verdict")


def main(arguments: list[str] | None = None) -> int:
    """Run all cases in both modes on both releases, print them, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31), help="of weights and samples")
    parser.add_argument(
        "--release", nargs="*", choices=slime_images.RELEASES, default=slime_images.RELEASES, help="of slime"
    )
    options = parser.parse_args(arguments)
    try:
        images = {release: slime_images.fetch(release) for release in options.release}
    except FetchError as error:
        sys.exit(str(error))
    try:
        rows = run_all(images, options.seed)
    except RuntimeError as error:
        sys.exit(str(error))
    print(table(rows))
    print(f"\ntorch {version('torch')}, seed {options.seed}. Two ranks, four for DP 2 with CP 2.")
    print(LEGEND)
    said = [
        line
        for release in images
        for line in unlike_claimed(release, rows[release, "plain"], rows[release, "overlay"])
    ]
    for line in said:
        print(f"NOT AS CLAIMED: {line}", file=sys.stderr)
    if options.json:
        figures = {
            "seed": options.seed,
            "tolerance": TOLERANCE,
            "as claimed": not said,
            "cases": [
                {"release": release, "mode": mode, "case": name, **_figures(row)}
                for (release, mode), found in rows.items()
                for name, row in found.items()
            ],
        }
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 1 if said else 0


def run_all(images: dict[str, Path], seed: int) -> dict[tuple[str, str], dict[str, Row]]:
    """Return the rows of each release and mode; as many are run at once as there are pairs of processors."""
    stop = threading.Event()

    def one(key: tuple[str, str]) -> dict[str, Row]:
        release, mode = key
        what = MODES[mode].format(release)
        say(f"{what}: importing slime and Megatron ...")
        told = lambda text: say(f"{what}: {text}")  # noqa: E731
        return run(release, images[release], mode, cases_of(release), seed, told, stop)

    keys = [(release, mode) for release in images for mode in MODES]
    # Ranks wait for each other a good part of the time.
    with ThreadPoolExecutor(max_workers=max(2, (os.cpu_count() or 2) // 2)) as pool:
        try:
            return dict(zip(keys, pool.map(one, keys), strict=True))
        except BaseException:  # one has failed, or the user has had enough: the others end too
            pool.shutdown(wait=False, cancel_futures=True)
            stop.set()
            raise


def table(rows: dict[tuple[str, str], dict[str, Row]]) -> str:
    """Return the rows of all releases and modes as text, in columns."""
    lines: list[tuple[str, ...] | str] = []
    for (release, mode), found in rows.items():
        lines += ["", MODES[mode].format(release), HEAD, *map(cells, found.values())]
    widths = [max(len(line[at]) for line in lines if isinstance(line, tuple)) for at in range(len(HEAD))]
    return "\n".join(line if isinstance(line, str) else _aligned(line, widths) for line in lines[1:])


def cells(row: Row) -> tuple[str, ...]:
    """Return what is shown of a row, `-` for what was not looked at."""
    over = "-"
    if row.over is not None:
        count, of, worst = row.over
        over = f"{count} of {of}, +{worst - 1:.0%}" if count else f"none of {of}"
    peak = "-" if row.peak is None else f"{row.peak:.1f}"
    verdict = textwrap.shorten(row.verdict, WIDTH, placeholder=" ...")
    errors = map(_error, (row.advantages, row.gradient, row.published))
    return (row.case.name, over, *errors, peak, verdict)


def _error(value: float | None) -> str:
    return "-" if value is None else "0" if value == 0 else f"{value:.1e}"


def _aligned(line: tuple[str, ...], widths: list[int]) -> str:
    return "".join(f"  {cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()


def _figures(row: Row) -> dict[str, Any]:
    return {name: value for name, value in vars(row).items() if name != "case"}


def say(text: str) -> None:
    """Report progress, beside what is printed."""
    # At once: releases are run in threads, and `print` writes the end of the line by itself.
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
