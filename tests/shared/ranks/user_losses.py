"""Losses as users write them: sums that scale, means that do not, and some that are both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from verl.utils.metric import AggregationType, Metric
from verl.workers.utils.losses import ppo_loss, sft_loss

if TYPE_CHECKING:
    from collections.abc import Callable


def mean_of_sequences(model_output: Any, data: Any, dp_group: Any = None) -> Any:
    """Be a mean over the sequences of a micro-batch, and ask for no scale."""
    del data, dp_group
    rows = torch.stack([row[:-1].mean() for row in model_output["log_probs"].unbind()])
    return -rows.mean(), {"mean": Metric(AggregationType.SUM, rows.mean())}


def scaled_mean(model_output: Any, data: Any, dp_group: Any = None) -> Any:
    """Be a mean over what is at hand, times `dp_size`."""
    loss, metrics = mean_of_sequences(model_output, data, dp_group)
    return loss * data["dp_size"], metrics


def both(model_output: Any, data: Any, dp_group: Any = None) -> Any:
    """Add a part that scales to one that does not."""
    loss, metrics = mean_of_sequences(model_output, data, dp_group)
    return 0.5 * loss + sft_loss(None, model_output, data, dp_group)[0], metrics


def centred(model_output: Any, data: Any, dp_group: Any = None) -> Any:
    """Scale as verl's losses do, but subtract from each gain the mean of those at hand."""
    del dp_group
    mask = torch.roll(data["loss_mask"].values(), shifts=-1, dims=0)
    values = model_output["log_probs"].values()
    gains = values.detach().exp()
    gains = gains - (gains * mask).sum() / mask.sum().clamp(min=1)
    return -(gains * values * mask).sum() / data["batch_num_tokens"] * data["dp_size"], {}


def half(model_output: Any, data: Any, dp_group: Any = None) -> Any:
    """Leave out every other token, at random."""
    del data, dp_group
    values = torch.cat([row[:-1] for row in model_output["log_probs"].unbind()])
    return -(values * (torch.rand(values.shape) < 0.5)).mean(), {}


def silent_at_first(model_output: Any, data: Any, dp_group: Any = None) -> Any:
    """Be a mean in which the first sequences of those at hand do not count."""
    del data, dp_group
    rows = torch.stack([row[:-1].mean() for row in model_output["log_probs"].unbind()])
    return -(rows * (torch.arange(len(rows)) >= len(rows) // 2)).mean(), {}


def plain_sum(model_output: Any, data: Any, dp_group: Any = None) -> Any:
    """Be verl's own sum under another name."""
    return sft_loss(None, model_output, data, dp_group)


def ppo_by_another_name(config: Any, model_output: Any, data: Any, dp_group: Any = None) -> Any:
    """Be verl's loss of a policy."""
    return ppo_loss(config, model_output, data, dp_group)


#: Those that need no configuration.
USERS: dict[str, Callable[..., Any]] = {
    "mean": mean_of_sequences,
    "scaled mean": scaled_mean,
    "both": both,
    "centred": centred,
    "half": half,
    "silent at first": silent_at_first,
    "sum": plain_sum,
}
