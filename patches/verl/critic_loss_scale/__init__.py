"""`verl.critic-loss-scale`: what engines tell each loss of the whole batch reaches the critic's too."""

from typing import Any

from overlay.compat.projects import VERL
from overlay.effect import effect
from overlay.patch import Calls, Patch, around, one_target, replaced, variant

_LOSSES, _ALGORITHMS = "verl.workers.utils.losses", "verl.trainer.ppo.core_algos"
_REPORTED = "critic/vf_loss"
EFFECT = effect(__name__, "micro-batch", did="scaled the loss of", always=True)

#: While a critic's loss is computed: what `agg_loss` is to divide by, in its own words. A plain global,
#: because `torch.compile` cannot trace a context variable.
_batch: dict[str, Any] | None = None


@around
def train_batch(original: Any, self: Any, data: Any, loss_function: Any) -> Any:
    """Let the engine count, in place of `loss_mask`, what a critic's loss is taken over: `response_mask`."""
    from verl.workers.utils import losses

    inner = loss_function
    while hasattr(inner, "func"):
        inner = inner.func
    if inner is losses.value_loss and {"loss_mask", "response_mask"} <= set(data.keys()):
        data = data.clone(recurse=False)
        data["loss_mask"] = data["response_mask"]
    return original(self, data, loss_function)


@around
def agg_loss(
    original: Any, loss_mat: Any, loss_mask: Any, loss_agg_mode: str, *args: Any, **kwargs: Any
) -> Any:
    """Tell the original of the whole batch while a critic's loss is computed."""
    if _batch is not None:
        return original(loss_mat, loss_mask, loss_agg_mode, **_batch)
    return original(loss_mat, loss_mask, loss_agg_mode, *args, **kwargs)


def make_value_loss(original: Any, module: Any) -> Any:
    """Return a micro-batch's share in the loss of the whole batch, times the ranks: these are averaged."""
    import torch

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
        if hasattr(module, "Metric"):
            metrics[_REPORTED] = module.Metric(value=loss, aggregation=module.AggregationType.SUM)
        else:  # verl 0.7.0 takes the mean over micro-batches of whatever is reported
            with torch.no_grad():
                metrics[_REPORTED] = original(config, model_output, data, dp_group)[1][_REPORTED]
        return loss, metrics

    return value_loss


PATCH = Patch(
    id="verl.critic-loss-scale",
    summary="A critic's gradient does not depend on how its batch is split",
    why="verl 0.7 and 0.8 take the mean of a critic's loss over each micro-batch and add up the gradients: "
    "the gradient grows with the number of micro-batches, and a short one counts as much as a full one. Adam "
    "and gradient clipping hide a constant factor, but not that it changes with the cut. With the patch the "
    "loss is the mean over the mini-batch of all ranks, as for the policy and in verl 0.9, over the tokens "
    "that rejection sampling keeps, and the reported norm falls by about the number of micro-batches. "
    "seq-mean-token-sum-norm keeps what verl does for the policy: it divides by the width of a micro-batch, "
    "and is a sum over a rank's samples in 0.7.0, which also still reports critic/vf_loss as a mean of "
    "micro-batches. The legacy workers (0.7 with use_legacy_worker_impl other than disable) are left alone.",
    evidence="verl 0.9.0 takes the mean of a critic's loss over the mini-batch too (#6957). The contract "
    "compares gradients with one process in float64. Where only response_mask rejects, the kept tokens "
    "count, as for one micro-batch of unpatched verl 0.8; verl 0.9 counts the rejected ones as well. In the "
    "seq-mean modes sequences that are rejected whole count, as in verl 0.9: there one micro-batch of "
    "unpatched verl 0.8 divides by those that are kept.",
    changes=("numbers",),
    met="A critic on verl's FSDP or Megatron engine, with several micro-batches or data parallel ranks, or "
    "in a seq-mean mode with responses that are rejected whole.",
    upstream=("verl-project/verl#6957",),
    targets=one_target(
        VERL,
        variant(
            "0.7 and 0.8",
            replaced(f"{_LOSSES}:value_loss", make_value_loss),
            replaced(f"{_ALGORITHMS}:agg_loss", agg_loss),
            Calls(site=f"{_ALGORITHMS}:compute_value_loss", callee="agg_loss"),
            replaced("verl.workers.engine.base:BaseEngine.train_batch", train_batch),
        ),
        tells=(_LOSSES,),
    ),
)
