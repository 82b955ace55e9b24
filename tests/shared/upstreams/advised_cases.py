"""What Megatron does under the settings that records of known defects advise, on two ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from overlay.compat.contracts import megatron_parts as parts
from overlay.patches.megatron.masked_loss_cp.contract import COUNTS, ROWS, WIDTH
from overlay.patches.megatron.moe_aux_scale import contract as of_losses

Case = tuple[str, dict[str, int], Callable[[], dict[str, float]]]


def cases(world: int) -> list[Case]:
    """Return a case of each advice for each of its layouts."""
    masked: list[Case] = [
        (f"a loss per token, {name}", {"context": 2}, functools.partial(_masked, counts))
        for name, counts in COUNTS.items()
    ]
    from megatron.core.transformer.moe.router import TopKRouter

    if not hasattr(TopKRouter, "_apply_global_aux_loss"):
        return masked
    scaled = of_losses.cases(world, of_losses.GLOBAL)
    unpadded: list[Any] = [
        *((f"a coefficient of all ranks, {name}", sizes, functools.partial(_scaled, step))
          for name, sizes, step in scaled),
        *((f"packed, {name}", sizes, step) for name, sizes, step in of_losses.cases(world, ["z_loss"])),
        *((f"{count} in a micro-batch, {name}", sizes, functools.partial(_sequences, count, step))
          for name, sizes, step in of_losses.cases(world, ["seq_aux_loss"])
          if name.startswith("dp, seq_aux_loss, per token")
          for count in (1, 2)),
    ]  # fmt: skip
    return masked + [one for one in unpadded if not one[0].endswith("padded")]


def _masked(counts: tuple[tuple[int, int], ...]) -> dict[str, float]:
    """Take a step with a loss per token, and return how far the gradient is from that of one process."""
    import torch
    import torch.distributed as dist

    draw = parts.generator()
    weight = torch.randn(WIDTH, generator=draw, dtype=torch.float64)
    rows = torch.randn(len(counts), 2, ROWS, WIDTH, generator=draw, dtype=torch.float64)
    masks = torch.tensor([[[row < count for row in range(ROWS)] for count in pair] for pair in counts])
    one = weight.clone().requires_grad_()
    (((rows @ one).square() * masks).sum() / masks.sum()).backward()

    config = parts.small_transformer(
        hidden_size=WIDTH, num_attention_heads=1, context_parallel_size=2, calculate_per_token_loss=True
    )
    model = parts.chunk(config, lambda own, data: (data @ own.weight).square())
    model.weight = torch.nn.Parameter(weight.float())
    parallel = parts.data_parallel(model)

    def forward_step(data: Any, chunk: Any) -> Any:
        batch, mask = next(data)
        return chunk(batch.float()), lambda out: ((out * mask).sum(), mask.sum().int(), {})

    rank = dist.get_rank()
    data = iter(zip(rows[:, rank], masks[:, rank], strict=True))
    parts.run_schedule([parallel], forward_step, data, batches=len(counts), tokens=ROWS, sequences=1)
    return {"error": parts.relative_error(model.weight.main_grad, one.grad)}


def _sequences(count: int, step: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Take a step with so many sequences in a micro-batch."""
    plain, of_losses.SEQUENCES = of_losses.SEQUENCES, count
    try:
        return step()
    finally:
        of_losses.SEQUENCES = plain


def _scaled(step: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Take a step with a coefficient that is multiplied by the data parallel size."""
    from megatron.core import parallel_state

    plain = of_losses._model

    def model(*args: Any, **kwargs: Any) -> Any:
        made = plain(*args, **kwargs)
        made.router.config.moe_aux_loss_coeff *= parallel_state.get_data_parallel_world_size()
        return made

    of_losses._model = model
    try:
        return step()
    finally:
        of_losses._model = plain
