"""The losses that are tried: each that verl registers, its other ones, and some as users write them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from verl.trainer.distillation.losses import distillation_ppo_loss
from verl.trainer.ppo import core_algos
from verl.utils.metric import AggregationType, Metric
from verl.workers.config import ActorConfig, DistillationLossConfig
from verl.workers.config.actor import PolicyLossConfig
from verl.workers.utils.losses import ppo_loss, sft_loss

#: The ways in which verl aggregates: the last with a divisor of its own.
MODES: tuple[dict[str, Any], ...] = (
    {"mode": "token-mean"},
    {"mode": "seq-mean-token-sum"},
    {"mode": "seq-mean-token-mean"},
    {"mode": "seq-mean-token-sum-norm", "factor": 7},
)
#: What some losses need beside their name: shares of the tokens that take some in, and leave some out.
SETTINGS: dict[str, dict[str, Any]] = {
    "clip_cov": {"clip_cov_ratio": 0.25, "clip_cov_lb": -9.0, "clip_cov_ub": 9.0},
    "kl_cov": {"kl_cov_ratio": 0.3, "ppo_kl_coef": 0.8},
}
BYPASSES: dict[str, dict[str, Any]] = {
    "clipped": {"loss_type": "ppo_clip", "rollout_is": None},
    "reinforce": {"loss_type": "reinforce", "rollout_is": "token", "rollout_is_threshold": 1.3},
    "normalised": {
        "loss_type": "reinforce",
        "rollout_is": "sequence",
        "rollout_is_threshold": 1.3,
        "rollout_is_batch_normalize": True,
    },
}
DISTILLATIONS: dict[str, dict[str, Any]] = {
    "k3": {"loss_mode": "k3", "use_policy_gradient": False},
    "k1": {"loss_mode": "k1", "use_policy_gradient": True},
}


# --- as users write them: sums that scale, means that do not, and some that are both ---


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
    "mean": mean_of_sequences, "scaled mean": scaled_mean, "both": both, "centred": centred, "half": half,
    "silent at first": silent_at_first, "sum": plain_sum,
}  # fmt: skip


# --- all of them ---


def kinds() -> dict[str, dict[str, Any]]:
    """Return the settings of `run` by kind of loss: each that verl registers, and others."""
    modes = itertools.cycle(MODES)
    terms: Iterator[dict[str, Any]] = itertools.cycle([{}, {"entropy": 0.3}, {"kl": 0.7}])
    found: dict[str, dict[str, Any]] = {}
    for name in core_algos.POLICY_LOSS_REGISTRY:
        if name == "bypass_mode":
            for kind, correction in BYPASSES.items():
                found[f"bypass_mode {kind}"] = {"loss_mode": name, "correction": correction}
        else:
            found[name] = {"loss_mode": name, **next(modes), **next(terms)}
    for mode in MODES:
        found[f"vanilla {mode['mode']}"] = {**mode, "entropy": 0.3, "kl": 0.7}
    found["sft"] = {"loss": functools.partial(sft_loss, None)}
    for name, settings in DISTILLATIONS.items():
        found[f"distillation {name}"] = {"distillation": settings}
    width: dict[str, Any] = {"mode": "seq-mean-token-sum-norm", "by_width": True, "entropy": 0.3}
    found["width"] = width
    found["width geo_mean"] = {**width, "loss_mode": "geo_mean"}
    found["width user"] = {**width, "function": ppo_by_another_name}
    found["width one"] = {**width, "micro_batches": 1, "native": True}
    found["per token loss"] = {"loss_mode": "geo_mean", "entropy": 0.3, "per_token_loss": True}
    for name, loss in USERS.items():
        found[f"user {name}"] = {"loss": loss}
    return found


def config_of(
    *,
    mode: str = "token-mean",
    loss_mode: str = "vanilla",
    entropy: float = 0.0,
    kl: float = 0.0,
    correction: dict[str, Any] | None = None,
    factor: int | None = None,
) -> ActorConfig:
    """Return verl's configuration of an actor's loss. `factor` is `loss_scale_factor`."""
    policy_loss = PolicyLossConfig(loss_mode=loss_mode, **SETTINGS.get(loss_mode, {}))
    if correction is not None:
        object.__setattr__(policy_loss, "rollout_correction", correction)
    return ActorConfig(
        strategy="megatron", rollout_n=1, ppo_micro_batch_size_per_gpu=1, loss_agg_mode=mode,
        loss_scale_factor=factor, policy_loss=policy_loss, entropy_coeff=entropy, use_kl_loss=bool(kl),
        kl_loss_coef=kl, kl_loss_type="mse",
    )  # fmt: skip


def loss_of(
    *,
    loss: Callable[..., Any] | None = None,
    function: Callable[..., Any] = ppo_loss,
    distillation: dict[str, Any] | None = None,
    **settings: Any,
) -> Callable[..., Any]:
    """Return a loss as verl's engine is given it, with a configuration of its own. See `run`."""
    config = config_of(**settings)
    if distillation is not None:
        told = SimpleNamespace(distillation_loss=DistillationLossConfig(**distillation))
        return functools.partial(distillation_ppo_loss, config=config, distillation_config=told)
    return loss or functools.partial(function, config=config)
