"""`verl.moe-aux-scale`: with Megatron's loss per token, too, gradients have the scale that verl counts on.

Megatron's schedule gets a loss function that tells the tokens that the routers see, and a loss that is
multiplied by them.
"""

from functools import wraps
from typing import Any

from overlay.compat.projects import VERL
from overlay.effect import Figure, effect
from overlay.patch import Patch, around, one_target, replaced, variant

_ENGINE = "verl.workers.engine.megatron.transformer_impl"
EFFECT = effect(
    __name__,
    "step",
    Figure(name="times", says="how many times too large verl's gradient would have been", combine="max"),
    did="told its tokens",
    always=True,
    then="without it a gradient {times} times too large",
)


@around
def get(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Tell Megatron's schedule the tokens: in training, per token, without dynamic context parallelism."""
    return _telling(original(*args, **kwargs), shared=False)


@around
def get_shared(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Do so for verl 0.6, which divides a loss by the context parallel ranks that share its sequences."""
    return _telling(original(*args, **kwargs), shared=True)


def _telling(schedule: Any, *, shared: bool) -> Any:
    from megatron.core import parallel_state
    from megatron.core.utils import get_model_config

    def forward_backward_func(**call: Any) -> Any:
        model, step = call["model"], call["forward_step_func"]
        config = get_model_config(model[0] if isinstance(model, list) else model)
        per_token = config.calculate_per_token_loss and not call.get("forward_only", False)
        # With dynamic context parallelism `verl.dynamic-cp-loss` scales the loss.
        if per_token and not _setting(step, "dynamic_context_parallel", other=False):
            ranks = parallel_state.get_data_parallel_world_size(with_context_parallel=not shared)
            EFFECT.changed += 1
            EFFECT.times = max(EFFECT.times, ranks)
            call.update(_told(step, call["data_iterator"], call["num_microbatches"], shared=shared))
        return schedule(**call)

    return forward_backward_func


def _setting(step: Any, name: str, *, other: Any) -> Any:
    """Return a setting of the engine whose step this is. The legacy workers have steps without an engine."""
    engine = getattr(getattr(step, "func", None), "__self__", None)
    return getattr(getattr(engine, "engine_config", None), name, other)


def _told(step: Any, data_iterator: Any, num_microbatches: int, *, shared: bool) -> dict[str, Any]:
    """Return the step and the data with which the schedule is to be called.

    Megatron adds gradients up over ranks and micro-batches, and divides by the tokens of all of them. verl
    has multiplied its loss by the micro-batches, and counts on an average over data parallel ranks. So the
    loss is divided by both and multiplied by the tokens, as router losses are. `shared` says whether it has
    been divided by the context parallel ranks.
    """
    import torch
    import torch.distributed as dist
    from megatron.core import parallel_state
    from verl.utils.device import get_device_id

    packed = _setting(step, "use_remove_padding", other=True)
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

    @wraps(step)
    def forward_step(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        output, loss_function = step(*args, **kwargs)

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
    """Return how many tokens of a micro-batch the routers see, a tensor of one integer.

    Packed, each that there is. Padded, those of its longest sequence, as often as it has sequences.
    """
    ids = batch["input_ids"]
    lengths = ids.offsets().diff() if ids.is_nested else batch["attention_mask"].sum(dim=-1)
    return lengths.sum() if packed else lengths.max() * len(lengths)


_SCHEDULE = f"{_ENGINE}:get_forward_backward_func"
_POSTPROCESS = f"{_ENGINE}:MegatronEngineWithLMHead.postprocess_micro_batch_func"

PATCH = Patch(
    id="verl.moe-aux-scale",
    summary="Gradients and router losses are right with calculate_per_token_loss too",
    why="With calculate_per_token_loss Megatron adds gradients up over all ranks and divides them by the "
    "tokens that the loss function told it, and verl up to 0.8 tells it none. The gradient of verl's loss is "
    "too large by the data parallel size (from 0.7 on times the context parallel size), and that of a "
    "router's losses, and of multi-token prediction's, by the number of all tokens. With the patch Megatron "
    "is told the tokens that the routers see, but those that align sequences, as in verl 0.9, and gets the "
    "loss times these. Padding counts without use_remove_padding, which verl 0.9 refuses here. Before "
    "Megatron 0.19, tensor or context parallelism needs megatron.moe-aux-scale besides. Dynamic context "
    "parallelism (verl.dynamic-cp-loss) and the legacy workers (0.7 with use_legacy_worker_impl other than "
    "disable) are left alone.",
    evidence="verl 0.9.0 tells Megatron how many tokens the routers see too (#6836). Gradients are compared "
    "with one process (tests/distributed/test_verl_scales.py).",
    changes=("numbers",),
    met="calculate_per_token_loss=True in verl's Megatron engine, with several data or context parallel "
    "ranks, or with moe_aux_loss_coeff or moe_z_loss_coeff. override_transformer_config sets it, and "
    "Megatron-Bridge does for Qwen-VL models under context parallelism.",
    upstream=("verl-project/verl#6836", "verl-project/verl#6609"),
    targets=one_target(
        VERL,
        variant("0.6", replaced(_SCHEDULE, get_shared), _POSTPROCESS),
        variant("0.7 and 0.8", replaced(_SCHEDULE, get), _POSTPROCESS),
        tells=(f"{_ENGINE}:MegatronEngine._routed_num_tokens", _ENGINE),
    ),
)
