"""Calls of slime's real `get_data_iterator` with a case of `rollouts`, by one rank or by all in turn."""

from __future__ import annotations

import contextlib
import inspect
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from overlay.compat.cuda_on_cpu import replaced
from overlay.compat.slime_on_cpu.rollouts import broken, is_impossible, is_over, steps_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from overlay.compat.slime_on_cpu.rollouts import Case, Split


def run(data: Any, given: Case, rank: int, **options: Any) -> Any:
    """Call `get_data_iterator` as a rank, and return its iterators and numbers of micro-batches.

    `data`: slime's module. `given`: the rollout. `rank`: the data parallel rank. `options`: arguments of
    slime to set otherwise; `dynamic` gives the size of the batch with the rollout.
    """
    lengths = given["ranks"][rank]
    world = len(given["ranks"])
    batch = len(lengths) // given["steps"] * world
    args = {
        "use_dynamic_batch_size": True, "max_tokens_per_gpu": given["budget"], "micro_batch_size": 1,
        "global_batch_size": batch, "rollout_batch_size": len(lengths) * world, "n_samples_per_prompt": 1,
    }  # fmt: skip
    rollout: dict[str, Any] = {"total_lengths": list(lengths)}
    if options.pop("dynamic", False):
        rollout["dynamic_global_batch_size"] = args["global_batch_size"]
        args["global_batch_size"] = 1
    config = SimpleNamespace(microbatch_group_size_per_vp_stage=given["group"])
    model = [SimpleNamespace(config=config) for _ in range(given["stages"])]
    return data.get_data_iterator(SimpleNamespace(**{**args, **options}), model, rollout)


def split(data: Any, given: Case, rank: int, **options: Any) -> Split:
    """Return what a rank makes of a case."""
    try:
        iterators, counts = run(data, given, rank, **options)
    except Exception as error:  # noqa: BLE001 -- whatever it is, the test judges it
        return {"error": type(error).__name__, "message": str(error)}
    order = iterators[0].micro_batch_indices
    if [each.micro_batch_indices for each in iterators] != [order] * given["stages"]:
        raise RuntimeError("not the same micro-batches for each virtual stage")
    left = [list(part) for part in order]
    size = len(given["ranks"][rank]) // given["steps"]
    steps = []
    for step, number in enumerate(counts):
        parts, left = left[:number], left[number:]
        steps.append([[index - step * size for index in part] for part in parts])
    if left:
        raise RuntimeError(f"{len(left)} micro-batches belong to no step")
    return {"steps": steps}


def count(data: Any, given: Case, lengths: list[int]) -> int:
    """Return how many micro-batches a rank asks for, by the function that `get_data_iterator` calls."""
    name = "get_minimum_num_micro_batch_size"
    function = getattr(data, name)
    if "cp_size" in inspect.signature(function).parameters:
        return int(function(lengths, given["budget"], given["context"]))
    return int(function(lengths, given["budget"] * given["context"]))


@contextlib.contextmanager
def ranks(data: Any, given: Case) -> Iterator[None]:
    """Let a rank be one of those of the case, for Megatron's parallel state and for the all-reduce.

    All ranks of a case are run one after the other: what the others need goes into the MAX all-reduce, by the
    very function that slime counts with.
    """

    def all_reduce(tensor: torch.Tensor, **_options: Any) -> None:
        for rank in range(len(given["ranks"])):
            for step, lengths in enumerate(steps_of(given, rank)):
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


def splits(data: Any, given: list[Case], **options: Any) -> list[list[Split]]:
    """Return what each rank makes of each case."""
    found = []
    for one in given:
        with ranks(data, one):
            found.append([split(data, one, rank, **options) for rank in range(len(one["ranks"]))])
    return found


def alike(data: Any, given: Sequence[Case]) -> str:
    """Return which rollout is split otherwise than without patches, of those that slime alone splits well.

    The commit that splits under the budget by itself does not balance: there the numbers have to be the same.
    """
    from overlay.testing import without

    ours, theirs = without(lambda: splits(data, list(given)))
    same = _numbers if hasattr(data, "_get_capped_partitions") else list
    for case, mine, right in zip(given, ours, theirs, strict=True):
        over = any(is_over(case, step) for step in range(case["steps"]))
        if not over and not broken(case, right) and same(mine) != same(right):
            return f"{case['name']}: {mine}, and without the patch {right}"
    return ""


def _numbers(found: Sequence[Split]) -> list[list[int] | None]:
    """Return how many micro-batches each rank makes of each step, and of an error nothing."""
    return [None if "error" in split else [len(step) for step in split["steps"]] for split in found]


def wrong(data: Any, given: Sequence[Case]) -> str:
    """Return what is wrong with the split of a rollout, empty if nothing is with any of them.

    One that cannot be split has to be refused by all ranks with the same words. From 0.2.2 on, the size of
    the batch may come with the rollout.
    """
    ways: list[dict[str, Any]] = [{}]
    if "dynamic_global_batch_size" in inspect.getsource(data):
        ways.append({"dynamic": True})
    # The commit that splits under the budget by itself has no split over it.
    strict = hasattr(data, "_get_capped_partitions")
    for way in ways:
        for case, found in zip(given, splits(data, list(given), **way), strict=True):
            over = any(is_over(case, step) for step in range(case["steps"]))
            refusable = is_impossible(case) or (strict and over)
            if refusable and "error" in found[0] and all(split == found[0] for split in found):
                continue
            if off := broken(case, found):
                return f"{case['name']}: {off[0]}"
    return ""
