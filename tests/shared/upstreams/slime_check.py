"""Split rollouts with slime's real `get_data_iterator`, with overlay and without, and print both as JSON.

    python slime_check.py SEED [COUNT]

The revision of slime that stands first on the path is used.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import overlay
from overlay.compat.cuda_on_cpu import cuda_on_cpu
from overlay.compat.slime_on_cpu import import_slime
from overlay.compat.slime_on_cpu.rollouts import DRAWN, case, cases
from overlay.compat.slime_on_cpu.splits import ranks, run, splits

if TYPE_CHECKING:
    from overlay.compat.slime_on_cpu.rollouts import Case, Split

PATCHES = ("slime.capped-partitions", "slime.vpp-ceiling")


def static(data: Any) -> Any:
    """Return what becomes of a rollout with micro-batches of a fixed size."""
    given = case("static", [50] * 12, budget=60, steps=2, stages=2, group=4)
    with ranks(data, given):
        iterators, counts = run(data, given, 0, use_dynamic_batch_size=False, micro_batch_size=3)
    return [[[each.micro_batch_size, each.micro_batch_indices] for each in iterators], counts]


def helper(data: Any) -> dict[str, Any]:
    """Return what commit 286750aa3's own partitioner does; nothing elsewhere."""
    capped = getattr(data, "_get_capped_partitions", None)
    found: dict[str, Any] = {}
    for name, lengths, parts, limit in (
        ("slime#1838", [4, 4, 1, 1, 1, 1, 1], 4, 8),
        ("slime#1839", [5, 1, 1], 2, 4),
    ):
        if capped is not None:
            try:
                found[name] = capped(lengths, parts, limit)
            except AssertionError as error:
                found[name] = f"{type(error).__name__}: {error}"
    return found


def look(data: Any, given: list[Case]) -> dict[str, Any]:
    """Return all that is looked at in one state of the module."""
    in_use = data.get_seqlen_balanced_partitions
    balancing = sys.modules["slime.utils.seqlen_balancing"]
    found = {
        "splits": splits(data, given),
        "static": static(data),
        "helper": helper(data),
        # Everybody else's call: over the budget of nobody.
        "elsewhere": [in_use([7] * 8, 5, equal_size=False), in_use([7] * 8, 4, equal_size=True)],
        "shared": balancing.get_seqlen_balanced_partitions.__code__.co_filename == balancing.__file__,
        "file": data.get_data_iterator.__code__.co_filename == data.__file__,
    }
    if "dynamic_global_batch_size" in Path(str(data.__file__)).read_text(encoding="utf-8"):
        found["dynamic"] = splits(data, given, dynamic=True)
    return found


def warned(data: Any, given: list[Case]) -> tuple[list[list[Split]], list[str]]:
    """Return the splits and what overlay's log said meanwhile."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("overlay")
    logger.addHandler(handler)
    try:
        return splits(data, given), said
    finally:
        logger.removeHandler(handler)


def main(seed: str, drawn: int = DRAWN) -> None:
    """Print the findings."""
    warnings.simplefilter("ignore")
    given = cases(seed, drawn)
    overlay.enable(list(PATCHES), strict=True)
    with cuda_on_cpu():
        (data,) = import_slime("data")
        status = overlay.status()
        report: dict[str, Any] = {
            "states": {patch.patch: patch.state for patch in status.patches},
            "overlay": look(data, given),
        }
        overlay.disable()
        report["plain"] = look(data, given)
        overlay.enable([PATCHES[0]], strict=True)
        report["alone"], report["said"] = warned(data, given)
    report["path"] = str(data.__file__)
    print(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
