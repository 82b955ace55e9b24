"""Tells Megatron how many tokens there were, where it divides gradients by them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any


def make_get(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build `get_forward_backward_func`: Megatron's schedule, which is told the tokens of a micro-batch.

    Only in training, with `calculate_per_token_loss`, and without dynamic context parallelism.
    """
    return _make_get(original, shared=False)


def make_get_shared(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build the same for verl 0.6, which divides a loss by the context parallel ranks.

    Each of them has the gradient of its own part of the sequences, so that they are to be added up.
    """
    return _make_get(original, shared=True)


def _make_get(original: Callable[..., Any], *, shared: bool) -> Callable[..., Any]:
    from overlay.patches.verl.moe_aux_scale.effect import EFFECT

    # Of which Megatron has changed the parameters from release to release.
    @wraps(original)
    def get_forward_backward_func(*args: Any, **kwargs: Any) -> Callable[..., Any]:
        schedule = original(*args, **kwargs)

        def forward_backward_func(**call: Any) -> Any:
            if not call.get("forward_only", False) and _per_token(call["model"], call["forward_step_func"]):
                call = {**call, **_told(shared, **call)}
                EFFECT.changed += 1
                EFFECT.times = max(EFFECT.times, _added_up(shared))
            return schedule(**call)

        return forward_backward_func

    return get_forward_backward_func


def _added_up(shared: bool) -> int:
    """Return over how many ranks gradients are added up that verl has made to be averaged."""
    from megatron.core import parallel_state

    ranks: int = parallel_state.get_data_parallel_world_size(with_context_parallel=not shared)
    return ranks


def _per_token(model: Any, step: Any) -> bool:
    """Return whether gradients are to be divided by tokens that verl does not tell."""
    from megatron.core.utils import get_model_config

    config = get_model_config(model[0] if isinstance(model, list) else model)
    # There what a rank computes is not its micro-batch; `verl.dynamic-cp-loss` scales the loss.
    return config.calculate_per_token_loss and not _of_engine(step, "dynamic_context_parallel", other=False)


def _of_engine(step: Any, name: str, *, other: Any) -> Any:
    """Return a setting of the engine whose step this is. The legacy workers have steps without an engine."""
    engine = getattr(getattr(step, "func", None), "__self__", None)
    return getattr(getattr(engine, "engine_config", None), name, other)


def _told(
    shared: bool,
    *,
    forward_step_func: Callable[..., Any],
    data_iterator: Any,
    num_microbatches: int,
    **_call: Any,
) -> dict[str, Any]:
    """Return the step and the data with which the schedule is to be called.

    A gradient is the sum over ranks and micro-batches, divided by the tokens of all of them. verl's loss is
    to be averaged over data parallel ranks, and has been multiplied for a schedule that divides it by the
    micro-batches. So it is divided by both and multiplied by the tokens, as router losses have been.

    Args:
        shared: Whether the loss has been divided by the context parallel ranks.
        forward_step_func: As Megatron has it, and so are the others.
        data_iterator: verl's micro-batches, for each virtual stage if there are several.
        num_microbatches: Their number.

    """
    import torch
    import torch.distributed as dist
    from megatron.core import parallel_state
    from verl.utils.device import get_device_id

    packed = _of_engine(forward_step_func, "use_remove_padding", other=True)
    stages = data_iterator if isinstance(data_iterator, list) else [data_iterator]
    batches = [list(stage) for stage in stages]
    tokens = torch.stack([_tokens(batch, packed=packed) for batch in batches[0]]).to(get_device_id())
    total = tokens.sum()
    dist.all_reduce(total, group=parallel_state.get_data_parallel_group())
    factor = total / num_microbatches / parallel_state.get_data_parallel_world_size()
    if shared:
        factor = factor * parallel_state.get_context_parallel_world_size()
    # Context parallel ranks share their micro-batches, and one of them counts.
    counted = iter((tokens * (parallel_state.get_context_parallel_rank() == 0)).to(torch.int))

    @wraps(forward_step_func)
    def forward_step(*args: Any, **kwargs: Any) -> tuple[Any, Callable[..., Any]]:
        output, loss_function = forward_step_func(*args, **kwargs)

        def with_tokens(*loss_args: Any, **loss_kwargs: Any) -> tuple[Any, ...]:
            said = loss_function(*loss_args, **loss_kwargs)
            if len(said) != len(("loss", "report")):
                return tuple(said)  # an engine of one's own that tells the tokens itself
            loss, report = said
            return loss * factor, next(counted), report

        return output, with_tokens

    iterators = [iter(stage) for stage in batches]
    return {
        "forward_step_func": forward_step,
        "data_iterator": iterators if isinstance(data_iterator, list) else iterators[0],
    }


def _tokens(batch: Any, *, packed: bool) -> Any:
    """Return how many tokens of a micro-batch the routers see, as a tensor of one integer.

    Packed, each that there is. Padded, those of its longest sequence, as often as it has sequences.
    """
    ids = batch["input_ids"]
    lengths = ids.offsets().diff() if ids.is_nested else batch["attention_mask"].sum(dim=-1)
    return lengths.sum() if packed else lengths.max() * len(lengths)
