"""Which rows of slime's logits hold the responses, and how ranks put together what they split otherwise."""

from collections.abc import Sequence
from typing import Any

from overlay.patches._packed_loss.row_blocks import Span, numbers


def response_rows(logits: Any, args: Any, module: Any, **batch: Any) -> tuple[list[list[Span]], list[Any]]:
    """Return the rows of each sample's response as runs, and the tokens that they are to predict.

    slime's own `get_responses`, in `module`, knows each layout of its release; `batch` has its arguments. In
    place of logits [1, T, V], or [B, S, V] if sequences are padded, it gets the number of each row, in the
    float32 on which it insists: exact up to 2 ** 24.
    """
    from copy import copy

    import torch

    # The temperature is no business of a row's number.
    plain = copy(args)
    plain.rollout_temperature = 1.0
    count = logits[..., 0].numel()
    numbers = torch.arange(count, dtype=torch.float32, device="cpu").view(*logits.shape[:-1], 1)
    runs, targets = [], []
    for rows, tokens in module.get_responses(numbers, args=plain, **batch):
        found = _runs(rows[:, 0].long())
        count = sum(stop - start for start, stop in found)
        # Where there is no row, releases disagree on the tokens: of a response of none, `tokens[-0:]` is all.
        if count not in (0, len(tokens)):
            raise ValueError(f"{len(tokens)} response tokens, and {count} rows of logits for them")
        runs.append(found)
        targets.append(tokens[:count])
    return runs, targets


def _runs(rows: Any) -> list[Span]:
    """Cut ascending numbers of rows into runs: in zigzag context parallelism a sample has two."""
    if not len(rows):
        return []
    ends = (rows.diff() != 1).nonzero()[:, 0].tolist()
    first = [0, *(end + 1 for end in ends)]
    last = [*ends, len(rows) - 1]
    return [(int(rows[a]), int(rows[b]) + 1) for a, b in zip(first, last, strict=True)]


def spread_over_zigzag(
    values: Sequence[Any],
    runs: Sequence[Sequence[Span]],
    first_row: int,
    module: Any,
    total_lengths: Sequence[int],
    response_lengths: Sequence[int],
) -> list[list[Any]]:
    """Return values of contiguously split rows as the zigzag slices that slime expects, by sample.

    All ranks of the context parallel group must call this: it is one collective in the forward and one in the
    backward, whichever values a rank has, and whichever are part of a graph. `values` are tensors [R] of this
    rank's R response rows, the first of them part of the graph on every rank or on none; `runs` are as from
    `response_rows`; `first_row` is the number of this rank's first row among those of all ranks.
    """
    import torch
    import torch.distributed.nn.functional as dist

    places: list[Span] = []
    before = offset = 0
    for sample, total, length in zip(runs, total_lengths, response_lengths, strict=False):
        # The row that predicts the first token of the response.
        begin = before + total - length - 1
        by = first_row - begin + offset
        places += [(start + by, stop + by) for start, stop in sample]
        before += total
        offset += length
    rows = torch.stack(list(values))
    whole = rows.new_zeros(len(rows), offset).index_copy(1, numbers(places, rows.device), rows)
    whole = dist.all_reduce(whole, group=module.mpu.get_context_parallel_group())
    slices: list[list[Any]] = []
    for value, full in zip(values, whole, strict=True):
        kept = full if value.requires_grad else full.detach()
        parts = zip(kept.split(list(response_lengths)), total_lengths, response_lengths, strict=False)
        slices.append([module.slice_log_prob_with_cp(*part) for part in parts])
    return slices
