"""Divides the loss of a micro-batch by the tokens of all context parallel ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from types import ModuleType
from typing import Any

#: What a loss function returns that leaves the division to Megatron: a sum, a number of tokens, a report.
PARTS = 3
#: Settings by which sequences get context parallel groups of their own.
CHANGING = ("hybrid_context_parallel", "dynamic_context_parallel")


def make_calc_loss(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap `forward_step_calc_loss`: it gets a loss that is as much larger as its divisor is too small."""
    parameters = signature(original)

    @wraps(original)
    def forward_step_calc_loss(*args: Any, **kwargs: Any) -> Any:
        given = parameters.bind(*args, **kwargs)
        given.apply_defaults()
        arguments = given.arguments
        config = arguments["config"]
        # Groups that change from one micro-batch to the next: not all ranks of the static one are in a step.
        changing = any(getattr(config, name, False) for name in CHANGING)
        if not (changing or config.calculate_per_token_loss or arguments["loss_func"] is None):
            arguments["loss_func"] = _over_all_ranks(arguments["loss_func"], arguments["cp_group_size"])
        return original(*given.args, **given.kwargs)

    return forward_step_calc_loss


def _over_all_ranks(loss_func: Callable[..., Any], size: int | None) -> Callable[..., Any]:
    """Wrap a loss function. What is no sum with a number of tokens is returned as it is.

    Upstream divides the sum by this rank's tokens, at least one, and averages over the ranks. For the sum of
    all ranks over the tokens of all, a rank's part has to weigh as much as it has of the tokens.
    """
    from overlay.patches.megatron.masked_loss_cp.effect import EFFECT

    def loss(*args: Any, **kwargs: Any) -> Any:
        import torch
        from megatron.core import parallel_state

        outputs = loss_func(*args, **kwargs)
        ranks = parallel_state.get_context_parallel_world_size()
        # Groups of one's own, of another size, cannot be asked for from here.
        other = kwargs.get("non_loss_data") or not isinstance(outputs, tuple) or len(outputs) != PARTS
        if ranks == 1 or size not in (None, ranks) or other:
            return outputs
        EFFECT.changed += 1
        summed, tokens, reduced = outputs
        divisor = torch.as_tensor(tokens, device=summed.device).detach()
        total = divisor.clone().to(torch.float64)
        torch.distributed.all_reduce(total, group=parallel_state.get_context_parallel_group())
        divisor = divisor.clamp(min=1)  # 0.14 divides by none
        share = divisor * ranks / total.clamp(min=1)
        EFFECT.weight = share  # as it is: it is fetched when somebody asks
        return summed * share.to(summed.dtype), divisor, reduced

    return loss
