"""`megatron.dsa-indexer-scale`: the indexer's loss of DSA is averaged over micro-batches as others are."""

from inspect import signature
from typing import Any

from overlay.compat.projects import MEGATRON
from overlay.effect import effect
from overlay.patch import Patch, around, one_target, replaced, variant

_SITE = "megatron.core.pipeline_parallel.schedules:forward_step"
#: What takes its place where a forward runs beside a backward, by overlap_moe_expert_parallel_comm.
_COMBINED = "megatron.core.pipeline_parallel.combined_1f1b:combined_forward_backward_step"
_SCALER = "megatron.core.transformer.experimental_attention_variant.dsa:DSAIndexerLossAutoScaler"
EFFECT = effect(__name__, "micro-batch", did="scaled the indexer's loss of", always=True)


@around
def forward_step(
    original: Any,
    forward_step_func: Any,
    data_iterator: Any,
    model: Any,
    num_microbatches: int,
    input_tensor: Any,
    forward_data_store: Any,
    config: Any,
    *rest: Any,
    **named: Any,
) -> Any:
    """Set the scale that the backward of the indexer's loss takes, as those of other losses are set."""
    step = (forward_step_func, data_iterator, model, num_microbatches, input_tensor, forward_data_store)
    result = original(*step, config, *rest, **named)
    _set_scale(result[0], config, num_microbatches)
    return result


@around
def combined_step(original: Any, *given: Any, **named: Any) -> Any:
    """Set the same where a forward and a backward pass are one step, the last of which has no forward."""
    result = original(*given, **named)
    step = signature(original).bind(*given, **named).arguments
    if step["f_model"] is not None:
        _set_scale(result[0], step["config"], step["num_microbatches"])
    return result


def _set_scale(output: Any, config: Any, num_microbatches: int) -> None:
    """Set the scale that the next backward pass takes, by what a forward pass returned."""
    if getattr(config, "experimental_attention_variant", None) != "dsa":
        return
    import torch
    from megatron.core.transformer.experimental_attention_variant.dsa import DSAIndexerLossAutoScaler

    output = output[0] if isinstance(output, list) else output
    scale = torch.ones(1, device=output.device)
    if config.grad_scale_func is not None:
        scale = config.grad_scale_func(scale)
    DSAIndexerLossAutoScaler.set_loss_scale(
        scale if config.calculate_per_token_loss else scale / num_microbatches
    )
    EFFECT.changed += 1


PATCH = Patch(
    id="megatron.dsa-indexer-scale",
    summary="DSA's indexer loss is averaged over micro-batches, and scaled like the main loss",
    why="Megatron never sets the scale of the indexer's loss in DeepSeek sparse attention. Its gradient is "
    "too large by the number of micro-batches, unless losses are per token. In float16 it lacks the loss "
    "scale too, and is too small by that. With the patch it is scaled as Megatron scales other auxiliary "
    "losses.",
    changes=("numbers",),
    met="experimental_attention_variant=dsa with several micro-batches or a loss scale.",
    upstream=("NVIDIA/Megatron-LM#4070",),
    evidence="megatron-core 0.19 does the same (NVIDIA/Megatron-LM#4070).",
    targets=one_target(
        MEGATRON,
        variant(
            "0.16",
            replaced(_SITE, forward_step),
            replaced(_COMBINED, combined_step),
            f"{_SCALER}.backward",
            f"{_SCALER}.set_loss_scale",
            f"{_SITE}_calc_loss",
        ),
    ),
)
