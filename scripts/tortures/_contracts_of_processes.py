"""The contracts of patches that take several processes: gloo ranks.

As in `_contracts`, each says what does not hold. A rank that fails is an exception: that is not silent. Ranks
that do not end are wrong.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from checks import RANKS

GAPS = RANKS / "gap_cases.py"
#: Until all ranks are killed: before the one that waits for them is.
SECONDS = 200

#: Relative error of any one parameter's gradient: ranks compute in float32.
TOLERANCE = 1e-5
TRAININGS = ("fresh/0", "pairs", "mixed", "per token loss", "ppo token-mean", "ppo entropy and KL")
OUTPUTS = ("outputs", "outputs, pairs", "outputs, dynamic micro-batches")
ROTARY = ("rope", "rope, fused", "te, shared", "te, alone")


def verl_dynamic_cp(seed: str) -> str:
    """Gradients, the loss that is reported and the outputs of two ranks are those of one process."""
    found = _ranks(seed, RANKS / "dynamic_cp_cases.py", (*TRAININGS, *OUTPUTS, "roles"))
    if isinstance(found, str):
        return found
    for name in TRAININGS:
        if wrong := _training(found[name]):
            return f"{name}: {wrong}"
    for name in OUTPUTS:
        for row in found[name]:
            for kind in ("with loss", "without loss"):
                if not (row[kind]["error"] < TOLERANCE and row[kind]["lengths"] == row["lengths"]):
                    return f"{name}, {kind}: {row[kind]}"
    roles = [(row["source"], row["group"]) for row in found["roles"]]
    return "" if roles == [(True, 1), (False, 1)] else f"sources of outputs, and their groups: {roles}"


def megatron_dynamic_cp(seed: str) -> str:
    """There is a group of each size until it is destroyed, and attention is in that of its micro-batch."""
    found = _ranks(seed, GAPS, ("start", "settings", "warm up", "destroy", *ROTARY), te=True)
    if isinstance(found, str):
        return found
    expected: dict[str, list[dict[str, Any]]] = {
        "start": [{"groups": {"1": [rank], "2": [0, 1]}} for rank in range(2)],
        "settings": [{"ranks": 2, "cap": 6}] * 2,
        "warm up": [{"sizes": [2]}] * 2,
        "destroy": [{"left": []}] * 2,
    }
    for name, rows in expected.items():
        if found[name] != rows:
            return f"{name}: {found[name]}"
    for name in ROTARY:
        if wrong := _training(found[name]):
            return f"{name}: {wrong}"
    told = [row["told"] for row in found["rope, fused"]]
    groups = [[(row["set"], row["left in"]) for row in found[name]] for name in ROTARY[2:]]
    if told != [[2], [2]] or groups != [[([2, 1], 1)] * 2, [([0, 1], 1)] * 2]:
        return f"the groups of attention: {told}, {groups}"
    return ""


def _ranks(seed: str, module: Path, names: tuple[str, ...], *, te: bool = False) -> Any:
    """Return what two ranks found in each case, or what is wrong: that they did not end."""
    from overlay.compat.ranks.launcher import run_cases

    os.environ["OVERLAY_TEST_SEED"] = seed
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = run_cases(2, module, Path(folder), te=te, only=names, timeout=SECONDS)
        except TimeoutError as error:
            return str(error)
        except RuntimeError as error:  # with all that the ranks said
            said = re.findall(r"^(?:\[rank\d+\]: ?)?(\w+: .+)$", str(error), re.MULTILINE)
            errors = [line for line in said if line.partition(":")[0].endswith(("Error", "Exception"))]
            raise RuntimeError(errors[-1] if errors else str(error)[-300:]) from None
    for name in names:
        for row in found.get(name, [None]):
            # `error` is a figure where nothing was raised.
            if row is not None and isinstance(row.get("error"), str):
                raise RuntimeError(f"{name}: {row['error']}: {row['message']}")
    missing = [name for name in names if None in found.get(name, [None])]
    return f"ranks did not come back from {missing[0]!r}" if missing else found


def _training(rows: list[dict[str, Any]]) -> str:
    """Return what is wrong with a step of training on all ranks."""
    for rank, row in enumerate(rows):
        if not row["worst"] < TOLERANCE:
            return f"the gradient of rank {rank} is off by {row['worst']:.1e}"
        size = row.get("size", abs(row["loss"]))
        if row["source"] and not math.isclose(
            row["reported"], row["loss"], rel_tol=0, abs_tol=TOLERANCE * size
        ):
            return f"rank {rank} reports a loss of {row['reported']}, which is {row['loss']}"
    return ""
