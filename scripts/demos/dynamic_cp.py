"""Train a tiny model with verl's real Megatron engine, without overlay and with it, and compare gradients.

    ./scripts/demo [--json FILE] [--seed N]

Four gloo ranks on the CPU run `MegatronEngineWithLMHead.forward_backward_batch` with dynamic context
parallelism, Megatron's DDP and its schedule, on random weights and tokens. One process in float64 says
what the gradient and the loss of the whole batch are.

Exit code: 0 if every case is right with overlay, 1 if not.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

from overlay.compat.ranks.launcher import run_cases

RANKS = 4
#: Tokens of one sequence that a rank can hold.
CAP = 6
#: Relative, of the gradient and of the reported loss: ten times what float32 leaves here.
TOLERANCE = 1e-6
#: Seconds for one start of the ranks, most of which is importing verl and Megatron.
TIMEOUT = 240.0

_LONG, _SHORT = (5, 9, 4, 7, 3, 6, 8, 4), (5, 3, 4, 2, 3, 6, 6, 4)
#: What each case shows, its sequence lengths, and its number of micro-batches.
CASES: dict[str, tuple[tuple[int, ...], int]] = {
    "pairs of ranks share a sequence": (_LONG, 1),
    "one rank holds each sequence": (_SHORT, 1),
    "both, as two micro-batches": (_LONG + _SHORT, 2),
    "fewer sequences than ranks": ((20, 3), 1),
    "five sequences for four ranks": ((5, 4, 3, 4, 2), 1),
}
MODES = {"plain": "verl {verl} as released", "overlay": "verl {verl} with overlay"}

Row = dict[str, Any]


def main(arguments: list[str] | None = None) -> int:
    """Run all cases in both modes, print them, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31), help="of weights and tokens")
    options = parser.parse_args(arguments)
    os.environ["OVERLAY_TEST_SEED"] = str(options.seed)
    rows = {mode: run_mode(mode) for mode in MODES}
    versions = {name: _version(name) for name in ("verl", "megatron-core", "torch")}
    print(table(rows, versions))
    packages = f"megatron-core {versions['megatron-core']}, torch {versions['torch']}"
    print(f"\n{RANKS} ranks, {packages}, seed {options.seed}.")
    print("C: ranks per sequence, by micro-batch. g: gradient; g_ref: that of one process in float64.")
    right = all(row["verdict"] == "right" for row in rows["overlay"])
    if options.json:
        figures = {
            "seed": options.seed,
            "ranks": RANKS,
            "tolerance": TOLERANCE,
            "versions": versions,
            "right": right,
        }
        options.json.write_text(json.dumps({**figures, "cases": rows}, indent=2) + "\n", encoding="utf-8")
    return 0 if right else 1


# --- starting the ranks ---


def run_mode(mode: str) -> list[Row]:
    """Run every case in one mode, and return a row for each, in order.

    The ranks are started once, and once more after each case that they do not survive.
    """
    rows: dict[str, Row] = {}
    while left := [case for case in CASES if case not in rows]:
        print(f"{mode}: starting {RANKS} ranks (under a minute) ...", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as name:
            try:
                found = run_cases(
                    RANKS, Path(__file__), Path(name), overlay=mode == "overlay", only=left, timeout=TIMEOUT
                )
            except (RuntimeError, TimeoutError) as error:
                sys.exit(str(error))
        for case in left:
            rows[case] = _row(case, found.get(case, [None] * RANKS))
            if "crash" in rows[case]:
                break
    return list(rows.values())


def _row(case: str, found: list[Row | None]) -> Row:
    """Return the row of a case: its figures, or how it ended instead."""
    row: Row = {"case": case, "lengths": list(CASES[case][0])}
    # What the other ranks say is that one is gone, so the first to raise is the one to listen to.
    raised = sorted(
        (result["at"], rank, result["raised"])
        for rank, result in enumerate(found)
        if result and "raised" in result
    )
    if raised or None in found:
        crash = f"rank {raised[0][1]}: {raised[0][2]}" if raised else "ranks do not come back"
        return {**row, "crash": crash, "verdict": f"crashes: {crash}"}
    results = [result for result in found if result is not None]
    row |= {name: results[0].get(name) for name in ("sizes", "ratio", "reported", "true")}
    # Every rank holds the whole gradient; the worst one counts, and nothing is worse than no number.
    errors = [_number(result.get("error")) for result in results]
    row["error"] = max(errors, key=lambda error: (math.isnan(error), error))
    # A comparison with NaN is false: only what is known to be within the tolerance is right.
    right = all(error < TOLERANCE for error in errors) and abs(_over_true(row) - 1) < TOLERANCE
    return {**row, "verdict": "right" if right else "wrong"}


def _over_true(row: Row) -> float:
    """Return the reported loss over the true one, NaN if one of them is missing or the true one is 0."""
    true = _number(row["true"])
    return _number(row["reported"]) / true if true else math.nan


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


# --- on each rank ---


def cases(_world: int) -> list[tuple[str, int, int, Callable[[], Row]]]:
    """Return the cases for `overlay.compat.ranks.engine_main`. After one that fails, none is run any more."""
    failed: list[str] = []

    def run(case: str) -> Row:
        if failed:
            raise RuntimeError(f"after {failed[0]}")
        try:
            return _train(*CASES[case])
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what this case shows
            failed.append(case)
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"
            return {"raised": text[:160], "at": time.time()}

    return [(case, 1, 1, functools.partial(run, case)) for case in CASES]


def _train(lengths: tuple[int, ...], micro_batches: int) -> Row:
    """Run one forward and backward of the batch, and hold it against one process."""
    from overlay.compat.cpu_steps import run_sft

    # Without overlay every rank is a source of outputs, and they report the same.
    step = run_sft(lengths=list(lengths), cap=CAP, micro_batch_size_per_gpu=len(lengths) // micro_batches)
    return {**step, "true": step["loss"], "sizes": [part["size"] for part in step["seen"]]}


# --- showing ---


def table(rows: dict[str, list[Row]], versions: dict[str, str]) -> str:
    """Return the rows of both modes as text, in columns."""
    head = ("case", "lengths", "C", "|g|/|g_ref|", "error of g", "loss reported/true", "verdict")
    lines: list[tuple[str, ...] | str] = []
    for mode, title in MODES.items():
        lines += ["", title.format(**versions), head]
        lines += [_cells(row) for row in rows[mode]]
    widths = [max(len(cells[at]) for cells in lines if isinstance(cells, tuple)) for at in range(len(head))]
    return "\n".join(line if isinstance(line, str) else _aligned(line, widths) for line in lines)


def _aligned(cells: tuple[str, ...], widths: list[int]) -> str:
    return "".join(f"  {cell:{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()


def _cells(row: Row) -> tuple[str, ...]:
    lengths = ",".join(map(str, row["lengths"]))
    lengths = lengths if len(lengths) < 20 else f"{len(row['lengths'])} sequences"
    if "crash" in row:
        return (row["case"], lengths, "-", "-", "-", "-", row["verdict"])
    sizes = " and ".join("none" if size is None else str(size) for size in row["sizes"] or ()) or "-"
    ratio, loss = _factor(_number(row["ratio"])), _factor(_over_true(row))
    # The last digits of what rounding leaves are the processor's own.
    error = f"< {TOLERANCE:.0e}" if row["error"] < TOLERANCE else f"{row['error']:.1e}"
    return (row["case"], lengths, sizes, ratio, error, loss, row["verdict"])


def _factor(value: float) -> str:
    """Return a factor as a simple fraction if it is one within the tolerance, else in digits."""
    if not math.isfinite(value):
        return str(value)
    near = Fraction(value).limit_denominator(64)
    return str(near) if near and abs(float(near) / value - 1) < TOLERANCE else f"{value:.4g}"


def _version(distribution: str) -> str:
    from importlib.metadata import version

    return version(distribution)


if __name__ == "__main__":
    sys.exit(main())
