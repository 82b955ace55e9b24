"""`verl.critic-loss-scale`: the gradient of a critic does not depend on how its batch is cut.

verl's engines tell a loss how many tokens and samples the whole batch has, and by what data parallelism
divides. The loss of a policy takes it into account, and that of a critic does not. The numbers are handed
to the function that aggregates both, by a context variable: what is aggregated, and how, stays upstream's
own.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from overlay.compat.projects import VERL
from overlay.effect import effect
from overlay.patch import Calls, Patch, one_target, replaced, variant

_LOSSES = "verl.workers.utils.losses"
_VALUE_LOSS = f"{_LOSSES}:value_loss"
_TRAIN_BATCH = "verl.workers.engine.base:BaseEngine.train_batch"
_ALGORITHMS = "verl.trainer.ppo.core_algos"
_AGGREGATE, _COMPUTE = f"{_ALGORITHMS}:agg_loss", f"{_ALGORITHMS}:compute_value_loss"
EFFECT = effect(__name__, "micro-batch", did="scaled the loss of", always=True)


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


PATCH = Patch(
    id="verl.critic-loss-scale",
    revision=2,
    summary="The gradient of a critic does not depend on how its batch is cut",
    why=(
        "verl 0.7 and 0.8 take the mean of a critic's loss over each micro-batch, and add up the "
        "gradients. So the gradient grows with the number of micro-batches, a short micro-batch counts "
        "as much as a full one, and another micro-batch size, or use_dynamic_bsz, is another learning "
        "rate. With the patch the loss is the mean over the whole mini-batch of all ranks, as that of "
        "the policy is, and as in verl 0.9. The norm that is reported falls by about the number of "
        "micro-batches. Adam, and a gradient that is clipped at each step, hide a size that stays the "
        "same, but neither that it changes with the number of micro-batches, nor the weight of short "
        "ones. With one micro-batch on one rank, nothing changes under token-mean. Tokens that "
        "rejection sampling leaves out do not count, also where only response_mask says so. Under the modes "
        "that begin with seq-mean, samples without a token that counts are part of the number by which is "
        "divided, as they are for the policy. seq-mean-token-sum-norm divides by the width of a "
        "micro-batch besides, which main_ppo_sync of 0.8 lets differ, and is a sum over a rank's samples in "
        "0.7.0: both are so for the policy, and stay so. critic/vf_loss is reported for the whole mini-batch "
        "from verl 0.7.1 on; 0.7.0 has no way to say so, and reports the mean of its micro-batches as before."
        " The legacy workers (0.7 with use_legacy_worker_impl other than disable), whose micro-batches "
        "count by their samples, are left alone."
    ),
    evidence=(
        "verl 0.9.0 takes the mean of a critic's loss over the mini-batch too (#6957). The contract "
        "compares gradients with one process in float64, also where loss_mask and response_mask differ: "
        "there the tokens that are kept count, as for one micro-batch of verl 0.8 alone, and verl 0.9 "
        "counts the rejected ones as well."
    ),
    changes=("numbers",),
    met="A critic on verl's FSDP or Megatron engine, with several micro-batches or data parallel ranks.",
    upstream=("verl-project/verl#6957",),
    targets=one_target(
        VERL,
        variant(
            "0.7 and 0.8",
            replaced(_VALUE_LOSS, make_value_loss),
            replaced(_AGGREGATE, make_agg_loss),
            Calls(site=_COMPUTE, callee="agg_loss"),
            replaced(_TRAIN_BATCH, make_train_batch),
        ),
        tells=(_LOSSES,),
    ),
)
