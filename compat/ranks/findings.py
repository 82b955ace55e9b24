"""What ranks found in the cases of a contract: all of it, or why there is none."""

from __future__ import annotations

import math
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from overlay.compat.ranks.launcher import run_cases

#: Until all ranks are killed: before the one that waits for them is.
SECONDS = 200

#: Relative error of any one parameter's gradient: ranks compute in float32.
TOLERANCE = 1e-5


def on_ranks(seed: str, module: str | Path, names: tuple[str, ...], *, te: bool = False) -> Any:
    """Return what two ranks found in each case, or what is wrong: that they did not end."""
    try:
        found = _run(seed, 2, module, te=te, only=names)
    except TimeoutError as error:
        return str(error)
    for name in names:
        for row in found.get(name, [None]):
            # `error` is a figure where nothing was raised.
            if row is not None and isinstance(row.get("error"), str):
                raise RuntimeError(f"{name}: {row['error']}: {row['message']}")
    missing = [name for name in names if None in found.get(name, [None])]
    return f"ranks did not come back from {missing[0]!r}" if missing else found


def megatron_ranks(
    seed: str,
    module: str | Path,
    patches: str,
    *,
    release: Path | None = None,
    te: bool | str = False,
    ranks: int = 2,
) -> dict[str, list[Any]]:
    """Return what ranks with Megatron alone found in each case of a module.

    Args:
        seed: What the cases draw from.
        module: Its name, or the path of one, with `cases(world)` as `megatron_main` says.
        patches: Ids with commas, none if empty.
        release: A folder that comes first on the ranks' path.
        te: Whether there is a stand-in for Transformer Engine, or the version that it stands for.
        ranks: Number of ranks.

    Raises:
        RuntimeError: A case raised, or a rank did not come back from one.
        TimeoutError: No rank came back from the first case.

    """
    found = _run(
        seed, ranks, module, overlay=bool(patches), patches=patches, program="megatron_main.py",
        release=release, te=te,
    )  # fmt: skip
    for name, rows in found.items():
        for row in rows:
            if row is None:
                msg = f"ranks did not come back from {name!r}"
                raise RuntimeError(msg)
            if "trace" in row:
                msg = f"{name}: {row['error']}: {row['message']}"
                raise RuntimeError(msg)
    return found


def _run(seed: str, ranks: int, module: str | Path, **how: Any) -> dict[str, list[Any]]:
    """Run cases with a seed. Of all that ranks said before they ended, an error has the last one."""
    os.environ["OVERLAY_TEST_SEED"] = seed
    with tempfile.TemporaryDirectory() as folder:
        try:
            return run_cases(ranks, module, Path(folder), timeout=SECONDS, **how)
        except RuntimeError as error:
            said = re.findall(r"^(?:\[rank\d+\]: ?)?(\w+: .+)$", str(error), re.MULTILINE)
            errors = [line for line in said if line.partition(":")[0].endswith(("Error", "Exception"))]
            raise RuntimeError(errors[-1] if errors else str(error)[-300:]) from None


def fault_of_training(rows: list[dict[str, Any]]) -> str:
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
