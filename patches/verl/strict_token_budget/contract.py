"""Each sample is in one micro-batch, and no micro-batch is over the budget."""

import inspect
import random
from typing import Any

from overlay.patch import Contract
from overlay.testing import with_patches, without


def wrong(seed: str) -> str:
    """Return which drawn batch is not divided as was asked for, nor refused by the patch."""
    from verl.utils import seqlen_balancing

    draw = random.Random(seed)
    known = inspect.signature(seqlen_balancing.rearrange_micro_batches).parameters
    few = [
        {"lengths": [length] * count, "width": None, "arguments": {"max_token_len": cap}}
        for length, count, cap in ((7, 8, 8), (30720, 16, 32768))
    ]
    for case in [*few, *(draw_case(draw) for _ in range(60))]:
        if not known.keys() >= case["arguments"].keys():
            continue
        found = divide(seqlen_balancing, case)
        if "error" in found and "TokenBudgetError" not in found["error"]:
            raise RuntimeError(f"{found['error'][0]}: {found['message']}")
        if "error" not in found and not keeps(case, found):
            return f"{case} became {found}"
    return ""


def alike(seed: str) -> str:
    """Return which batch that verl alone divides within the bound is divided otherwise."""
    from verl.utils import seqlen_balancing

    draw = random.Random(seed)
    cases = [draw_case(draw) for _ in range(120)]
    ours, theirs = without(lambda: [divide(seqlen_balancing, case) for case in cases])
    for case, mine, right in zip(cases, ours, theirs, strict=True):
        if keeps(case, right) and mine != right:
            return f"{case} became {mine}, and without the patch {right}"
    return ""


def _draw_lengths(draw: random.Random, cap: int) -> list[int]:
    """Draw the tokens of each sample of a batch, none over `cap`, in one of the ways that are hard."""
    half, same = cap // 2, draw.randint(1, cap)
    ways: tuple[Any, ...] = (
        lambda: draw.randint(1, cap),
        lambda: min(cap, int(draw.lognormvariate(0, 1) * cap / 6) + 1),
        lambda: min(cap, half + draw.randint(0, 2)),
        lambda: draw.choice((1, max(1, cap // 3), half + 1, cap)),
        lambda: draw.choice((0, 1, cap)),
        lambda: draw.randint(max(1, half - 2), cap),
        lambda: same,
        lambda: cap,
    )
    count, way = draw.randint(1, 40), draw.choice((*ways, None))
    return [cap, *[1] * count] if way is None else [way() for _ in range(count)]


def draw_case(draw: random.Random) -> dict[str, Any]:
    """Draw one batch and the arguments with which it is divided, a few of which cannot be met."""
    cap = draw.choice((1, 2, 7, 8, 100, 1000, 32768))
    lengths = _draw_lengths(draw, cap)
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


def keeps(case: dict[str, Any], result: dict[str, Any]) -> bool:
    """Tell whether a result divides the batch as it was asked to."""
    if "error" in result:
        return False
    indices, arguments, lengths = result["indices"], case["arguments"], case["lengths"]
    size, cap = arguments.get("force_group_size", 1), arguments["max_token_len"]
    groups = [samples[start : start + size] for samples in indices for start in range(0, len(samples), size)]
    return (
        sorted(sample for samples in indices for sample in samples) == list(range(len(lengths)))
        and all(indices)
        and max(lengths) <= cap
        # What must stay together is alone if it is too much.
        and all(len(samples) == size or sum(lengths[one] for one in samples) <= cap for samples in indices)
        and all(group == list(range(group[0], group[0] + size)) and group[0] % size == 0 for group in groups)
        and len(indices) % arguments.get("num_batches_divided_by", 1) == 0
        and len(indices) >= arguments.get("min_num_micro_batch", 1)
    )


CONTRACT = Contract(
    check=with_patches(wrong, "verl.strict-token-budget"), alike=alike, before=("verl.protocol",)
)
