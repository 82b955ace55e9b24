"""Split rollouts with slime's real `get_data_iterator`, with overlay and without, and print both as JSON.

    python slime_check.py SEED [COUNT]

The revision of slime that stands first on the path is used. All ranks of a case are run one after the
other: what the others need goes into the MAX all-reduce, by the very function that slime counts with. Real
ranks are in `tests/distributed`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import slime_cases
from slime_split import run, split

import overlay
from overlay.compat.cuda_on_cpu import cuda_on_cpu, replaced
from overlay.compat.slime_on_cpu import import_slime

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

PATCHES = ("slime.capped-partitions", "slime.vpp-ceiling")


def count(data: Any, given: slime_cases.Case, lengths: list[int]) -> int:
    """Return how many micro-batches a rank asks for, by the function that `get_data_iterator` calls."""
    name = "get_minimum_num_micro_batch_size"
    function = getattr(data, name)
    if "cp_size" in function.__code__.co_varnames:
        return int(function(lengths, given["budget"], given["context"]))
    return int(function(lengths, given["budget"] * given["context"]))


@contextlib.contextmanager
def ranks(data: Any, given: slime_cases.Case) -> Iterator[None]:
    """Let a rank be one of those of the case, for Megatron's parallel state and for the all-reduce."""

    def all_reduce(tensor: torch.Tensor, **_options: Any) -> None:
        for rank in range(len(given["ranks"])):
            for step, lengths in enumerate(slime_cases.steps_of(given, rank)):
                tensor[step] = max(int(tensor[step]), count(data, given, lengths))

    stages = given["stages"] if given["stages"] > 1 else None
    answers = {
        "get_data_parallel_world_size": len(given["ranks"]),
        "get_data_parallel_group": None,
        "get_virtual_pipeline_model_parallel_world_size": stages,
        "get_context_parallel_world_size": given["context"],
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(replaced(data.dist, "all_reduce", all_reduce))
        for name, answer in answers.items():
            stack.enter_context(replaced(data.mpu, name, lambda answer=answer, **_options: answer))
        yield


def splits(data: Any, given: list[slime_cases.Case], **options: Any) -> list[list[slime_cases.Split]]:
    """Return what each rank makes of each case."""
    found = []
    for one in given:
        with ranks(data, one):
            found.append([split(data, one, rank, **options) for rank in range(len(one["ranks"]))])
    return found


def static(data: Any) -> Any:
    """Return what becomes of a rollout with micro-batches of a fixed size."""
    given = slime_cases.case("static", [50] * 12, budget=60, steps=2, stages=2, group=4)
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


def look(data: Any, given: list[slime_cases.Case]) -> dict[str, Any]:
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


def warned(data: Any, given: list[slime_cases.Case]) -> tuple[list[list[slime_cases.Split]], list[str]]:
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


def main(seed: str, drawn: int = slime_cases.DRAWN) -> None:
    """Print the findings."""
    warnings.simplefilter("ignore")
    given = slime_cases.cases(seed, drawn)
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
