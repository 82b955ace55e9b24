"""Divide drawn batches with the verl that is first on the path, and print what came of it as JSON.

    python token_budget_check.py SEED COUNT

First with overlay, then, after `overlay.disable()`, as released. The same seed draws the same batches for
every release, so that releases can be held against each other.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from typing import Any

import overlay

PATCHES = ["verl.strict-token-budget", "verl.fast-partitioner"]


def draw_lengths(draw: random.Random, cap: int) -> list[int]:
    """Draw the tokens of each sample of a batch, none over `cap`, in one of the ways that are hard."""
    count = draw.randint(1, 40)
    half = cap // 2
    ways: tuple[Any, ...] = (
        lambda: [draw.randint(1, cap) for _ in range(count)],
        lambda: [min(cap, int(draw.lognormvariate(0, 1) * cap / 6) + 1) for _ in range(count)],
        lambda: [draw.randint(1, cap)] * count,
        lambda: [min(cap, half + draw.randint(0, 2)) for _ in range(count)],
        lambda: [draw.choice((1, max(1, cap // 3), half + 1, cap)) for _ in range(count)],
        lambda: [cap, *(1 for _ in range(count))],
        lambda: [cap] * count,
        lambda: [draw.choice((0, 1, cap)) for _ in range(count)],
        lambda: [draw.randint(max(1, half - 2), cap) for _ in range(count)],
    )
    return list(draw.choice(ways)())


def draw_case(draw: random.Random) -> dict[str, Any]:
    """Draw one batch and the arguments with which it is divided, a few of which cannot be met."""
    cap = draw.choice((1, 2, 7, 8, 100, 1000, 32768))
    lengths = draw_lengths(draw, cap)
    arguments: dict[str, Any] = {"max_token_len": cap}
    if draw.random() < 0.3:
        size = draw.choice((2, 3, 4))
        # One in eight does not divide.
        keep = len(lengths) if draw.random() < 0.125 else max(len(lengths) // size, 1) * size
        lengths = (lengths * size)[:keep]
        arguments["force_group_size"] = size
        arguments["max_token_len"] = cap * draw.choice((1, size, size))
    if draw.random() < 0.3:
        arguments["num_batches_divided_by"] = draw.choice((1, 2, 3, 4))
    if draw.random() < 0.3:
        samples = len(lengths)
        arguments["min_num_micro_batch"] = draw.choice((1, 2, samples // 2, samples, samples + 1))
    if draw.random() < 0.3:
        arguments["use_dynamic_bsz_balance"] = False
    if draw.random() < 0.1:
        lengths[draw.randrange(len(lengths))] = arguments["max_token_len"] + 1
    longest, most = max(lengths), arguments["max_token_len"]
    # The width of a padded batch counts as the longest sample, and may be too much where no sample is.
    width = most + 1 if draw.random() < 0.1 else draw.randint(longest, max(longest, most))
    # There is nothing to learn from moving megabytes.
    padded = draw.random() < 0.4 and width <= 1001
    return {"lengths": lengths, "width": max(width, longest, 1) if padded else None, "arguments": arguments}


def make_batch(lengths: list[int], width: int | None) -> Any:
    """Make a batch of as many tokens as are asked for, each of which says to which sample it belongs."""
    import torch
    from tensordict import TensorDict

    if width is None:
        rows = [torch.full((length,), index) for index, length in enumerate(lengths)]
        fields = {"input_ids": torch.nested.as_nested_tensor(rows, layout=torch.jagged)}
    else:
        mask = torch.arange(width)[None] < torch.tensor(lengths)[:, None]
        ids = torch.arange(len(lengths))[:, None].expand(-1, width)
        fields = {"input_ids": ids, "attention_mask": mask.long()}
    return TensorDict(fields, batch_size=[len(lengths)])


def divide(seqlen_balancing: Any, case: dict[str, Any]) -> dict[str, Any]:
    """Return the indices by micro-batch, and the error if there is one."""
    batch = make_batch(case["lengths"], case["width"])
    try:
        micro_batches, indices = seqlen_balancing.rearrange_micro_batches(batch, **case["arguments"])
    except Exception as error:  # noqa: BLE001 -- which it is, the test judges
        kinds = [kind.__name__ for kind in type(error).__mro__]
        return {"error": kinds, "message": str(error)}
    for micro_batch, samples in zip(micro_batches, indices, strict=True):
        ids = micro_batch["input_ids"]
        firsts = [int(row[0]) for row in ids.unbind() if len(row)]
        assert firsts == [sample for sample in samples if case["lengths"][sample] or case["width"]], samples
    return {"indices": [[int(sample) for sample in samples] for samples in indices]}


def tokens(case: dict[str, Any], indices: list[list[int]]) -> list[int]:
    """Return the tokens of each micro-batch."""
    return [sum(case["lengths"][sample] for sample in samples) for samples in indices]


def keeps(case: dict[str, Any], result: dict[str, Any]) -> bool:
    """Tell whether a result divides the batch as it was asked to."""
    if "error" in result:
        return False
    indices, arguments = result["indices"], case["arguments"]
    size = arguments.get("force_group_size", 1)
    whole = [samples[start : start + size] for samples in indices for start in range(0, len(samples), size)]
    return (
        sorted(sample for samples in indices for sample in samples) == list(range(len(case["lengths"])))
        and all(indices)
        and max(case["lengths"]) <= arguments["max_token_len"]
        # What must stay together is alone if it is too much.
        and all(
            len(samples) == size or number <= arguments["max_token_len"]
            for samples, number in zip(indices, tokens(case, indices), strict=True)
        )
        and all(group == list(range(group[0], group[0] + size)) and group[0] % size == 0 for group in whole)
        and len(indices) % arguments.get("num_batches_divided_by", 1) == 0
        and len(indices) >= arguments.get("min_num_micro_batch", 1)
    )


def whole_way(seqlen_balancing: Any) -> dict[str, Any]:
    """Return the tokens of each micro-batch as the workers of this release get them."""
    import torch
    from verl.protocol import DataProto

    found: dict[str, Any] = {}
    batch = make_batch([7] * 8, 7)
    data = DataProto.from_dict(dict(batch))
    parts, _ = seqlen_balancing.prepare_dynamic_batch(data, max_token_len=8)
    found["prepare_dynamic_batch"] = [int(part.batch["attention_mask"].sum()) for part in parts]
    try:
        from verl.workers.engine import utils
    except ImportError as error:
        # Releases that want an older transformers. Their workers call what has been called above.
        return {**found, "skipped": str(error)}
    from tensordict.tensorclass import NonTensorData

    assert utils.rearrange_micro_batches is seqlen_balancing.rearrange_micro_batches
    batch = make_batch([7] * 8, None)
    settings = {"max_token_len_per_gpu": 4, "sp_size": 2, "use_dynamic_bsz": True}
    static = {"micro_batch_size_per_gpu": 2, "use_dynamic_bsz": False}
    for name, values in (("dynamic", settings), ("static", static)):
        data = batch.clone()
        for key, value in values.items():
            data[key] = NonTensorData(value)
        parts, _ = utils.prepare_micro_batches(data)
        assert all(isinstance(part["input_ids"], torch.Tensor) for part in parts)
        found[name] = [int(part["input_ids"].offsets()[-1]) for part in parts]
        found[f"{name} rows"] = [[int(row[0]) for row in part["input_ids"].unbind()] for part in parts]
    return found


def partitioned(seqlen_balancing: Any, draw: random.Random, count: int) -> list[Any]:
    """Return verl's own partitions of drawn workloads: lists, tensors of integers and of floats."""
    import torch

    # Commits before 0.6.1 do without.
    workload = getattr(seqlen_balancing, "calculate_workload", torch.clone)
    results = []
    for _ in range(count):
        parts = draw.randint(1, 12)
        samples = parts * draw.randint(1, 8)
        most = draw.choice((1, 3, 50, 40_000))
        values: Any = [draw.randint(0, most) for _ in range(samples)]
        kind = draw.choice(("list", "int64", "int32", "float32"))
        if kind != "list":
            values = workload(torch.tensor(values, dtype=getattr(torch, kind)))
        for equal_size in (False, True):
            try:
                found = seqlen_balancing.get_seqlen_balanced_partitions(values, parts, equal_size=equal_size)
            except AssertionError as error:  # of workloads that overflow, such as those of int32
                found = str(error)
            results.append(found)
    return results


def partitioner_calls(seqlen_balancing: Any, samples: int, parts: int) -> int:
    """Count the calls that it takes to divide drawn samples: time that is the same on every machine."""
    draw = random.Random(samples)
    values = [draw.randint(1, 40_000) for _ in range(samples)]
    calls: Counter[str] = Counter()
    sys.setprofile(lambda _frame, event, _argument: calls.update([event]))
    try:
        seqlen_balancing.karmarkar_karp(values, parts, equal_size=False)
    finally:
        sys.setprofile(None)
    return calls["call"] + calls["c_call"]


def report(seed: str, count: int) -> dict[str, Any]:
    """Return all findings of what is in place now."""
    import inspect

    from verl.utils import seqlen_balancing

    draw = random.Random(seed)
    cases = [draw_case(draw) for _ in range(count)]
    known = inspect.signature(seqlen_balancing.rearrange_micro_batches).parameters
    return {
        "path": seqlen_balancing.__file__,
        "results": [
            divide(seqlen_balancing, case) if known.keys() >= case["arguments"].keys() else None
            for case in cases
        ],
        "issue": [
            divide(seqlen_balancing, {"lengths": lengths, "width": None, "arguments": {"max_token_len": cap}})
            for lengths, cap in (([7] * 8, 8), ([30720] * 16, 32768))
        ],
        "workers": whole_way(seqlen_balancing),
        "partitions": partitioned(seqlen_balancing, random.Random(f"{seed}/partitions"), count // 3),
        "calls": [partitioner_calls(seqlen_balancing, 16 * size, 3 * size) for size in (8, 16)],
    }


def main(seed: str, count: int) -> None:
    """Print the report."""
    import json

    overlay.enable(PATCHES)
    ours = report(seed, count)
    states = {patch.patch: patch.state for patch in overlay.status().patches}
    overlay.disable()
    print(json.dumps({"states": states, "overlay": ours, "released": report(seed, count)}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
