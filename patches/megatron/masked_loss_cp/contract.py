"""Context parallel ranks with different numbers of tokens get the gradient of one process."""

import functools
from typing import Any

from overlay.compat.contracts import megatron_parts as parts
from overlay.compat.contracts.rank_cases import Cases, RankCases, Row, within

#: Rows of a micro-batch on a rank, and their width.
ROWS, WIDTH = 6, 4
#: Which of them count, on either rank, in each micro-batch of a step.
COUNTS: dict[str, tuple[tuple[int, int], ...]] = {
    "as many": ((3, 3), (2, 2)),
    "fewer": ((5, 1), (1, 6), (4, 2)),
    "none on one": ((5, 0), (2, 4)),
    "none at all": ((0, 0), (1, 4)),
}


def cases(_world: int) -> Cases:
    """Return a case for each distribution of tokens over two ranks of context or data parallelism."""
    return [
        (f"{axis}, {name}", sizes, functools.partial(_step, counts, context=axis == "cp"))
        for axis, sizes in (("cp", {"context": 2}), ("dp", {"context": 1}))
        for name, counts in COUNTS.items()
        # Data parallel ranks divide each by their own tokens, with the patch too.
        if axis == "cp" or name in ("as many", "fewer")
    ]


def _step(counts: tuple[tuple[int, int], ...], *, context: bool) -> Row:
    """Take a step, and return how far the gradient is from that of one process, relatively."""
    import torch
    import torch.distributed as dist

    draw = parts.generator()
    weight = torch.randn(WIDTH, generator=draw, dtype=torch.float64)
    rows = torch.randn(len(counts), 2, ROWS, WIDTH, generator=draw, dtype=torch.float64)
    masks = torch.tensor([[[row < count for row in range(ROWS)] for count in pair] for pair in counts])
    right = _of_one_process(weight, rows, masks, context=context)

    rank = dist.get_rank()
    config = parts.small_transformer(hidden_size=WIDTH, num_attention_heads=1, **parts.layout())
    model = parts.chunk(config, lambda own, rows: (rows @ own.weight).square())
    model.weight = torch.nn.Parameter(weight.float())
    parallel = parts.data_parallel(model)

    def forward_step(data: Any, chunk: Any) -> Any:
        batch, mask = next(data)
        return chunk(batch.float()), lambda out: ((out * mask).sum(), mask.sum().int(), {})

    data = iter(zip(rows[:, rank], masks[:, rank], strict=True))
    parts.run_schedule([parallel], forward_step, data, batches=len(counts), tokens=ROWS, sequences=1)
    return {"error": parts.relative_error(model.weight.main_grad, right)}


def _of_one_process(weight: Any, rows: Any, masks: Any, *, context: bool) -> Any:
    """Return the gradient of the mean over micro-batches of the mean over tokens, in float64."""
    import torch

    weight = weight.clone().requires_grad_()
    losses = (rows @ weight).square() * masks  # micro-batches, ranks, rows
    over = (1, 2) if context else (2,)
    torch.mean(losses.sum(over) / masks.sum(over).clamp(min=1)).backward()
    return weight.grad


# Relative, of a gradient in float32.
CASES = RankCases("megatron.masked-loss-cp", "the gradient is not that of one process", within(1e-5))
CONTRACT = CASES.contract()
