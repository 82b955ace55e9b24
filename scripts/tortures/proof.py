"""Hold dynamic context parallelism on a whole transformer to one process, on releases of Megatron-Core.

The cases are those of `proof_cases.py`, on gloo ranks. What is printed of each kind of case
is the largest relative error that any rank found: of a parameter's gradient (or its weight, after three steps
of the optimizer), of an output, of the reported loss.

Exit code: 0 if every error is within the tolerance, 1 if not.
"""

from __future__ import annotations

import argparse
import os
import secrets
import tempfile
from pathlib import Path
from typing import Any

RELEASES = ("0.16.1", "0.17.1", "0.18.2", "0.19.2")
TOLERANCE = 1e-5
#: Each kind of case, and what is held to one process in it.
KINDS = {"sft": "gradients", "ppo": "gradients", "outputs": "outputs", "steps": "weights"}

Rows = dict[str, list[Any]]


def main(arguments: list[str]) -> int:
    """Run every release on every number of ranks, print a table, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--seed", type=int, default=secrets.randbelow(2**31), help="of weights, tokens, plans"
    )
    parser.add_argument("--worlds", type=int, nargs="+", default=[4, 8], help="numbers of ranks")
    parser.add_argument("--releases", nargs="+", default=list(RELEASES), help="of megatron-core")
    options = parser.parse_args(arguments)
    os.environ["OVERLAY_TEST_SEED"] = str(options.seed)
    from checks import RANKS

    from overlay.compat.ranks.launcher import run_cases
    from progress import tracked
    from sources.fetch_release import fetch

    print(f"{'megatron-core':<14}{'ranks':>5}  {'kind':<9}{'cases':>5}  {'error of':<18}{'of the loss':>13}")
    right = True
    runs = [(release, world) for release in options.releases for world in options.worlds]
    for release, world in tracked(runs, lambda run: f"megatron-core {run[0]}, {run[1]} ranks"):
        folder = Path(fetch(f"megatron-core=={release}"))
        with tempfile.TemporaryDirectory() as name:
            found = run_cases(world, RANKS / "proof_cases.py", Path(name), release=folder)
        for kind, what in KINDS.items():
            cases = {case: rows for case, rows in found.items() if case.partition(",")[0] == kind}
            error, loss = worst_of(cases)
            right = right and error < TOLERANCE and loss < TOLERANCE
            print(f"{release:<14}{world:>5}  {kind:<9}{len(cases):>5}  {what:<10}{error:>8.1e}{loss:>13.1e}")
    print(f"\nseed {options.seed}; every error is relative, in float32.")
    return 0 if right else 1


def worst_of(cases: Rows) -> tuple[float, float]:
    """Return the largest errors of some cases, infinite if a rank raised or there is none."""
    rows = [row for ranks in cases.values() for row in ranks]
    if not rows or any(row is None or isinstance(row.get("error"), str) for row in rows):
        return float("inf"), float("inf")
    errors, losses = [], []
    for row in rows:
        both = [row[kind] for kind in ("with loss", "without loss") if kind in row]
        errors += [part["error"] for part in both] or [row["worst"]]
        if "losses" in row:
            losses += [abs(loss / true - 1) for loss, true in row["losses"]]
        elif both:
            losses.append(abs(sum(row["with loss"]["losses"]) / row["loss"] - 1))
        else:
            reported = [row["loss everywhere"], *([row["reported"]] if row["source"] else [])]
            # The terms of a policy's loss cancel: its error is relative to their size.
            losses += [abs(value - row["loss"]) / abs(row.get("size", row["loss"])) for value in reported]
    return max(errors), max(losses)
