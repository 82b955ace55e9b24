"""Calls of the real `build_dp_schedule` of slime 0.3 and of its fork, and what must hold of a schedule."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

#: A model of about 8 billion parameters, by which slime counts operations.
MODEL = {
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_query_groups": 8,
    "kv_channels": 128,
    "vocab_size": 151_936,
    "ffn_hidden_size": 12_288,
    "num_layers": 36,
    "num_experts": None,
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")),
    "micro_batch_size": 1,
}


def cases(seed: str) -> list[dict[str, Any]]:
    """Return rollouts: tokens of each sample, budget, and parallel sizes."""
    draw = random.Random(seed)
    found: list[dict[str, Any]] = [
        {"lengths": [7] * 16, "budget": 8, "data": 2},
        {"lengths": [30_720] * 16, "budget": 32_768, "data": 2},
        {"lengths": [5000] + [10] * 31, "budget": 100, "data": 2},
        {"lengths": [100] * 12, "budget": 100, "data": 4},
        {"lengths": [101] * 12, "budget": 100, "data": 4},
        {"lengths": [1] * 12, "budget": 100, "data": 2, "stages": 2, "group": 3},
        {"lengths": [60] * 12 + [1] * 3, "budget": 100, "data": 2, "stages": 2, "group": 2},
        {"lengths": [0] * 12, "budget": 100, "data": 4},
    ]
    for _ in range(4):
        tokens = [min(round(draw.lognormvariate(7.9, 1.0)), 16_384) for _ in range(512)]
        found.append({"lengths": tokens, "budget": 16_384, "data": 8, "steps": 2})
    for _ in range(120):
        budget = draw.choice([1, 8, 100, 8192])
        context = draw.choice([1, 2])
        high = budget * context * draw.choice([1, 1, 1, 2])
        low = draw.choice([1, budget * context // 4 + 1, budget * context // 2 + 1])
        samples = draw.choice([4, 8, 13, 40])
        found.append(
            {
                "lengths": [draw.randint(min(low, high), high) for _ in range(samples)],
                "budget": budget,
                "context": context,
                "data": draw.choice([1, 2, 4]),
                "stages": draw.choice([1, 1, 2]),
                "group": draw.choice([2, 3]),
            }
        )
    return [{"steps": 1, "context": 1, "stages": 1, "group": 1, **given} for given in found]


def schedule(module: Any, given: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Return the micro-batches of each step and rank as indices of samples, or the error."""
    args = SimpleNamespace(
        **{
            **MODEL, "use_dynamic_batch_size": True, "max_tokens_per_gpu": given["budget"],
            "balance_data": False, "balance_by_flops": True, **options,
        }
    )  # fmt: skip
    sizes = {
        "dp_size": given["data"],
        "cp_size": given["context"],
        "vpp_size": given["stages"],
        "microbatch_group_size_per_vp_stage": given["group"],
    }
    lengths = given["lengths"]
    rollouts = next(
        name for name in inspect.signature(module.build_dp_schedule).parameters if "_indices" in name
    )
    batch = {"global_batch_size": len(lengths) // given["steps"], rollouts: list(range(len(lengths)))}
    try:
        partitions, indices, counts, _ = module.build_dp_schedule(args, sizes, lengths, **batch)
    except Exception as error:  # noqa: BLE001 -- whatever it is, the test judges it
        return {"error": type(error).__name__, "message": str(error)}
    steps: list[Any] = []
    for step, number in enumerate(counts):
        start = sum(counts[:step])
        steps.append(
            [
                [[owned[index] for index in part] for part in parts[start : start + number]]
                for owned, parts in zip(partitions, indices, strict=True)
            ]
        )
    return {"steps": steps}


def parts_of(schedule: dict[str, Any]) -> Iterator[list[int]]:
    """Yield the micro-batches of all steps and ranks."""
    for step in schedule["steps"]:
        for rank in step:
            yield from rank


def over(given: dict[str, Any], schedule: dict[str, Any]) -> int:
    """Return how many micro-batches of more than one sample exceed the budget."""
    limit = given["budget"] * given["context"]
    return sum(
        len(part) > 1 and sum(given["lengths"][index] for index in part) > limit
        for part in parts_of(schedule)
    )


def broken(given: dict[str, Any], schedule: dict[str, Any]) -> list[str]:
    """Return what of the contract does not hold for a schedule."""
    if "error" in schedule:
        return [f"{schedule['error']}: {schedule['message']}"]
    found = []
    if sorted(index for part in parts_of(schedule) for index in part) != list(range(len(given["lengths"]))):
        found.append("not every sample once")
    if not all(parts_of(schedule)):
        found.append("an empty micro-batch")
    if over(given, schedule):
        found.append(f"{over(given, schedule)} micro-batches over the budget")
    group = given["group"] if given["stages"] > 1 else 1
    for step in schedule["steps"]:
        counts = [len(rank) for rank in step]
        if len(counts) != given["data"] or any(count != counts[0] or count % group for count in counts):
            found.append(f"numbers of micro-batches that do not fit: {counts}")
    return found


#: With what upstream refuses fewer samples than the ranks, or than a multiple of the group.
_TOO_FEW = ("below the alignment threshold", "at least one sample")


def _too_few(schedule: dict[str, Any]) -> bool:
    """Return whether samples were too few for a schedule."""
    return any(text in schedule.get("message", "") for text in _TOO_FEW)


#: Ways to ask for a schedule: by FLOPs, which is what is wrong, by tokens, and with a size of their own.
_WAYS: tuple[dict[str, Any], ...] = (
    {}, {"balance_data": True}, {"balance_by_flops": False}, {"use_dynamic_batch_size": False},
)  # fmt: skip


def alike(module: Any, given: list[dict[str, Any]]) -> str:
    """Return which schedule is another than without patches, of those that the upstream alone makes well."""
    from overlay.testing import without

    asked = [(one, way) for one in given for way in _WAYS]
    ours, theirs = without(lambda: [schedule(module, one, **way) for one, way in asked])
    for (one, way), mine, right in zip(asked, ours, theirs, strict=True):
        by_flops = way.get("balance_by_flops", True) and way.get("use_dynamic_batch_size", True)
        if by_flops and broken(one, right):
            continue
        if any(mine.get(what) != right.get(what) for what in ("steps", "error")):
            return f"{one['lengths']} {way}: {mine}, and without the patch {right}"
    return ""


def wrong(module: Any, given: list[dict[str, Any]]) -> str:
    """Return what is wrong with the schedule by FLOPs of a rollout, empty if nothing is with any of them.

    Raises:
        RuntimeError: A rollout of enough samples was refused.

    """
    for one in given:
        found = schedule(module, one)
        if "error" in found:
            if _too_few(found):
                continue
            raise RuntimeError(f"{found['error']}: {found['message']}")
        off = broken(one, found)
        # Where the upstream's own packing under the budget stops the job, none holds it.
        if off and not _too_few(schedule(module, one, balance_by_flops=False)):
            return f"{one['lengths']}: {off[0]}"
    return ""
