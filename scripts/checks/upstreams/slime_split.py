"""Calls of slime's real `get_data_iterator` with a case of `slime_cases`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slime_cases import Case, Split


def run(data: Any, given: Case, rank: int, **options: Any) -> Any:
    """Call `get_data_iterator` as a rank, and return its iterators and numbers of micro-batches.

    Args:
        data: slime's module.
        given: The rollout.
        rank: The data parallel rank.
        options: Arguments of slime to set otherwise; `dynamic` gives the size of the batch with the rollout.

    """
    lengths = given["ranks"][rank]
    world = len(given["ranks"])
    batch = len(lengths) // given["steps"] * world
    args = {
        "use_dynamic_batch_size": True,
        "max_tokens_per_gpu": given["budget"],
        "micro_batch_size": 1,
        "global_batch_size": batch,
        "rollout_batch_size": len(lengths) * world,
        "n_samples_per_prompt": 1,
    }
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
    assert len(iterators) == given["stages"]
    assert all(each.micro_batch_indices == iterators[0].micro_batch_indices for each in iterators)
    left = [list(part) for part in iterators[0].micro_batch_indices]
    size = len(given["ranks"][rank]) // given["steps"]
    steps = []
    for step, number in enumerate(counts):
        parts, left = left[:number], left[number:]
        steps.append([[index - step * size for index in part] for part in parts])
    assert not left
    return {"steps": steps}
