"""Train a tiny model with verl's real Megatron engine, without overlay and with it, and compare gradients.

    ./scripts/demo [--json FILE] [--seed N]

Four gloo ranks on the CPU run `MegatronEngineWithLMHead.forward_backward_batch` with dynamic context
parallelism, Megatron's DDP and its schedule, on random weights and tokens. One process in float64 says
what the gradient and the loss of the whole batch are.

Exit code: 0 if every case is right with overlay, 1 if not.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import math
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

RANKS = 4
#: Tokens of one sequence that a rank can hold.
CAP = 6
#: Relative, of the gradient and of the reported loss: ten times what float32 leaves here.
TOLERANCE = 1e-6
#: Seconds for one start of the ranks, most of which is importing verl.
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
    parser.add_argument("--ranks", nargs=2, metavar=("MODE", "FOLDER"), help=argparse.SUPPRESS)
    parser.add_argument("--cases", nargs="*", default=list(CASES), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.ranks:
        mode, folder = options.ranks
        return run_ranks(mode, Path(folder), options.cases, options.seed)
    rows = {mode: run_mode(mode, options.seed) for mode in MODES}
    versions = {name: _version(name) for name in ("verl", "megatron-core", "torch")}
    print(table(rows, versions))
    packages = f"megatron-core {versions['megatron-core']}, torch {versions['torch']}"
    print(f"\n{RANKS} ranks, {packages}, seed {options.seed}.")
    print("C: ranks that share a sequence, by micro-batch. g: gradient; g_ref: of one process in float64.")
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


def run_mode(mode: str, seed: int) -> list[Row]:
    """Run every case in one mode, and return a row for each, in order.

    The ranks are started once, and once more after each case that they do not survive.
    """
    rows: dict[str, Row] = {}
    while len(rows) < len(CASES):
        remaining = [name for name in CASES if name not in rows]
        _say(f"{mode}: starting {RANKS} ranks, which import verl and Megatron first (under a minute) ...")
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            ended = _start(mode, folder, remaining, seed)
            found = {case: _found(folder, case) for case in remaining}
            log = (folder / "log.txt").read_text(encoding="utf-8", errors="replace")
        if not any(found.values()):
            sys.exit(f"no rank has come as far as the first case:\n{log[-4000:]}")
        for case in remaining:
            row = _row(case, found[case], ended)
            rows[case] = row
            if "crash" in row:
                _say(f"{mode}: {case}: {row['verdict']}")
                break
    return [rows[case] for case in CASES]


def _start(mode: str, folder: Path, cases: list[str], seed: int) -> str:
    """Run the ranks to their end, report progress, and return how they ended."""
    command = [sys.executable, "-W", "ignore", __file__, "--ranks", mode, str(folder)]
    command += ["--seed", str(seed), "--cases", *cases]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    deadline = time.monotonic() + TIMEOUT
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            shown = 0
            while process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.2)
                done = [case for case in cases if _complete(_found(folder, case))]
                for case in done[shown:]:
                    _say(f"{mode}: {case}: done")
                shown = len(done)
            return "exit" if process.poll() is not None else "timeout"
        finally:
            # The ranks are a session of their own, and end together.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _complete(found: dict[int, Row]) -> bool:
    return len(found) == RANKS and not any("raised" in result for result in found.values())


def _found(folder: Path, case: str) -> dict[int, Row]:
    """Return what the ranks have written about a case so far."""
    found = {}
    for rank in range(RANKS):
        path = folder / f"rank{rank}.jsonl"
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            with contextlib.suppress(ValueError):  # a line that is being written
                name, result = json.loads(line)
                if name == case:
                    found[rank] = result
    return found


def _row(case: str, found: dict[int, Row], ended: str) -> Row:
    """Return the row of a case: its figures, or how it ended instead."""
    lengths, _ = CASES[case]
    row: Row = {"case": case, "lengths": list(lengths)}
    # What the other ranks say is that one is gone, so the first to raise is the one to listen to.
    raised = sorted(
        (result["at"], rank, result["raised"]) for rank, result in found.items() if "raised" in result
    )
    if not _complete(found):
        crash = f"rank {raised[0][1]}: {raised[0][2]}" if raised else "no rank says why"
        verdict = f"hangs for {TIMEOUT:.0f} s" if ended == "timeout" and not raised else f"crashes: {crash}"
        return {**row, "crash": crash, "verdict": verdict}
    row |= {name: found[0].get(name) for name in ("sizes", "ratio", "reported", "true")}
    # Every rank holds the whole gradient; the worst one counts, and nothing is worse than no number.
    errors = [_number(result.get("error")) for result in found.values()]
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


def run_ranks(mode: str, folder: Path, cases: list[str], seed: int) -> int:
    """Import what the ranks need, which takes most of their time, fork them, and return their exit status."""
    if mode == "overlay":
        import overlay

        overlay.enable("verl.dynamic-cp-loss, megatron.dynamic-cp-names", strict=True)

    from overlay.compat import cpu_engine, forked_ranks  # noqa: F401 -- the first for the ranks

    return forked_ranks.run(RANKS, lambda: run_on_this_rank(folder, cases, seed))


def run_on_this_rank(folder: Path, cases: list[str], seed: int) -> int:
    """Run cases in order, and write a line for each; end all ranks at the first one that fails."""
    from overlay.compat import cpu_engine

    path = folder / f"rank{os.environ['RANK']}.jsonl"
    with path.open("w", encoding="utf-8") as report, cpu_engine.cpu_ranks(), cpu_engine.parallel_state():
        for case in cases:
            result: Row
            try:
                result = _train(*CASES[case], seed=seed)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is what this case shows
                text = f"{type(error).__name__}: {' '.join(str(error).split())}"
                result = {"raised": text[:160], "at": time.time()}
            report.write(json.dumps([case, result]) + "\n")
            report.flush()
            if "raised" in result:
                os.killpg(0, signal.SIGKILL)  # the other ranks wait for this one
    return 0


def _train(lengths: tuple[int, ...], micro_batches: int, *, seed: int) -> Row:
    """Run one forward and backward of the batch, and hold it against one process."""
    from verl.utils import megatron_utils
    from verl.utils import tensordict_utils as tu
    from verl.workers.utils.losses import sft_loss

    from overlay.compat import cpu_engine, cpu_reference
    from overlay.compat.cuda_on_cpu import replaced

    engine = cpu_engine.build_engine(cap=CAP, seed=seed)
    batch = cpu_engine.random_batch(
        lengths, seed=seed, micro_batch_size_per_gpu=len(lengths) // micro_batches
    )
    true, reference = cpu_reference.loss_and_gradient(
        cpu_engine.weights_of(engine),
        batch["input_ids"].unbind(),
        cpu_reference.token_mean_loss(batch["loss_mask"].unbind()),
        heads=cpu_engine.HEADS,
    )
    sizes: list[int | None] = []
    split = megatron_utils.dynamic_cp_split_batch

    def noting_split(*given: Any, **named: Any) -> Any:
        part = split(*given, **named)
        sizes.append(tu.get_non_tensor_data(part, "local_cp_size", default=None))
        return part

    with replaced(megatron_utils, "dynamic_cp_split_batch", noting_split):
        output = cpu_engine.train(engine, batch, functools.partial(sft_loss, None))
    # Without overlay every rank is a source of outputs, and they report the same.
    reported = (
        cpu_engine.reported_metrics(engine, output)["loss"] if engine.is_mp_src_rank_with_outputs() else None
    )
    ratio, error = cpu_engine.compare(cpu_engine.gradients_of(engine), reference)
    return {"sizes": sizes, "ratio": ratio, "error": error, "reported": reported, "true": true}


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
    return (row["case"], lengths, sizes, ratio, f"{row['error']:.1e}", loss, row["verdict"])


def _factor(value: float) -> str:
    """Return a factor as a simple fraction if it is one within the tolerance, else in digits."""
    if not math.isfinite(value):
        return str(value)
    near = Fraction(value).limit_denominator(64)
    return str(near) if near and abs(float(near) / value - 1) < TOLERANCE else f"{value:.4g}"


def _version(distribution: str) -> str:
    from importlib.metadata import version

    return version(distribution)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
