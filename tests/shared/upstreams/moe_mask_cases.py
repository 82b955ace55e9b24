"""How many tokens a rank is told that it has, where a padding mask hides some of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def cases(world: int) -> list[tuple[str, dict[str, int], Callable[[], dict[str, float]]]]:
    """Return one case: rank r has r + 2 tokens, each of which two experts compute."""
    return [("count", {"tensor": world}, _count)]


def _count() -> dict[str, float]:
    import torch
    from megatron.core import parallel_state
    from megatron.core.transformer.moe.moe_utils import get_tokens_per_expert_and_token_count

    tokens = parallel_state.get_tensor_model_parallel_rank() + 2
    routed = torch.zeros(6, 3, dtype=torch.bool)
    routed[:tokens, :2] = True
    group = parallel_state.get_tensor_model_parallel_group()
    _, counted, _ = get_tokens_per_expert_and_token_count(routed, group, topk=2, with_padding_mask=True)
    return {"tokens": tokens, "counted": float(counted)}
