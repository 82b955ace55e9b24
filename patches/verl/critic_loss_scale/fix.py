"""What `verl.critic-loss-scale` puts in the place of upstream's own."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

#: While a critic's loss is computed: what `agg_loss` is to divide by, in its own words. A plain global,
#: because `torch.compile` cannot trace a context variable.
_batch: dict[str, Any] | None = None


def make_train_batch(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build `train_batch`: for a critic the engine counts the tokens that the loss is taken over.

    The engine counts `loss_mask`, and the loss is taken over `response_mask`. Rejection sampling leaves the
    former as it was in some trainers.
    """

    def train_batch(self: Any, data: Any, loss_function: Any) -> Any:
        if _is_value_loss(loss_function) and {"loss_mask", "response_mask"} <= set(data.keys()):
            data = data.clone(recurse=False)
            data["loss_mask"] = data["response_mask"]
        return original(self, data, loss_function)

    return train_batch


def _is_value_loss(loss_function: Any) -> bool:
    """Return whether a loss is `value_loss`, with its configuration or without."""
    from verl.workers.utils import losses

    while hasattr(loss_function, "func"):
        loss_function = loss_function.func
    return loss_function is losses.value_loss


def make_agg_loss(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build `agg_loss`: the original, which within a critic's loss is told of the whole batch."""

    def agg_loss(
        loss_mat: Any,
        loss_mask: Any,
        loss_agg_mode: str,
        dp_size: int = 1,
        batch_num_tokens: int | None = None,
        global_batch_size: int | None = None,
        loss_scale_factor: int | None = None,
    ) -> Any:
        whole = {
            "dp_size": dp_size,
            "batch_num_tokens": batch_num_tokens,
            "global_batch_size": global_batch_size,
            "loss_scale_factor": loss_scale_factor,
        }
        return original(loss_mat, loss_mask, loss_agg_mode, **(_batch or whole))

    return agg_loss


def make_value_loss(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build `value_loss`: the share of a micro-batch in the loss of the whole batch, times the ranks.

    The losses of all micro-batches add up, and gradients are averaged over the ranks: that is the mean over
    the batch, however it was cut.
    """
    from overlay.patches.verl.critic_loss_scale.effect import EFFECT

    def value_loss(config: Any, model_output: Any, data: Any, dp_group: Any = None) -> Any:
        global _batch  # noqa: PLW0603
        EFFECT.changed += 1
        _batch = {
            "dp_size": data["dp_size"],
            # Of a batch that was rejected whole the loss is zero, not zero by zero.
            "batch_num_tokens": max(data["batch_num_tokens"], 1),
            "global_batch_size": data["global_batch_size"],
            "loss_scale_factor": getattr(config, "loss_scale_factor", None),
        }
        try:
            loss, metrics = original(config, model_output, data, dp_group)
        finally:
            _batch = None
        metrics["critic/vf_loss"] = _reported(original, module, loss, config, model_output, data, dp_group)
        return loss, metrics

    return value_loss


def _reported(original: Callable[..., Any], module: ModuleType, loss: Any, *arguments: Any) -> Any:
    """Return what is reported of a micro-batch: shares, which are added up, or without that its own mean."""
    import torch

    if hasattr(module, "Metric"):
        return module.Metric(value=loss, aggregation=module.AggregationType.SUM)
    # verl 0.7.0 takes the mean over micro-batches of whatever is reported.
    with torch.no_grad():
        return original(*arguments)[1]["critic/vf_loss"]
