"""`megatron.mtp-loss-scale`: its loss is divided by the tokens of all context parallel ranks."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from copy import copy
from functools import wraps
from inspect import signature
from types import ModuleType
from typing import Any

from overlay.compat.projects import MEGATRON
from overlay.effect import effect
from overlay.patch import Absent, Patch, one_target, replaced, variant

_MTP = "megatron.core.transformer.multi_token_prediction"
_ROLL = f"{_MTP}:roll_tensor"
_LOSSES = f"{_MTP}:process_mtp_loss"
EFFECT = effect(__name__, "count of tokens", did="made over all context parallel ranks")
#: Whether tensors are being rolled for the losses, and not for the embeddings of the layers.
_IN_LOSSES: ContextVar[bool] = ContextVar("in_losses", default=False)


def _summed(count: Any, group: Any) -> Any:
    """Return the sum of a count over a group, as a float: one all-reduce of one number."""
    import torch

    total = count.detach().to(torch.float64)
    torch.distributed.all_reduce(total, group=group)
    return total.float()


def _size(group: Any) -> int:
    """Return the number of context parallel ranks, one if there is no group."""
    return 1 if group is None else int(group.size())


def make_mean_roll(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap the `roll_tensor` of 0.14 to 0.16, where losses are divided by the number that it returns.

    The gradient and the report are averaged over context parallel ranks. So each divides its part by the
    average of their numbers, for the sum of all over the tokens of all. Without any token it is one token.
    """
    parameters = signature(original)

    @wraps(original)
    def roll_tensor(*args: Any, **kwargs: Any) -> Any:
        rolled, count = original(*args, **kwargs)
        group = parameters.bind(*args, **kwargs).arguments.get("cp_group")
        ranks = _size(group)
        EFFECT.calls += 1
        EFFECT.changed += ranks > 1
        return rolled, (count if ranks == 1 else _summed(count, group)).clamp(min=1) / ranks

    return roll_tensor


def make_summed_roll(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap the `roll_tensor` of 0.17 and later: within the losses it counts the tokens of all ranks."""
    parameters = signature(original)

    @wraps(original)
    def roll_tensor(*args: Any, **kwargs: Any) -> Any:
        rolled, count = original(*args, **kwargs)
        group = parameters.bind(*args, **kwargs).arguments.get("cp_group")
        return rolled, _summed(count, group) if _IN_LOSSES.get() and _size(group) > 1 else count

    return roll_tensor


def make_losses(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Wrap `process_mtp_loss`, which divides by what the rolls count, and averages or adds up over ranks.

    A loss of a token is multiplied by the ranks that the report, and without per-token loss the gradient, is
    averaged over. With it the gradient is added up and divided by the tokens of the main loss, so a loss is
    to be multiplied by these. Upstream multiplies by a rank's own, which may be none. That is left out, and
    the factor goes into the coefficient.
    """
    parameters = signature(original)

    @wraps(original)
    def process_mtp_loss(*args: Any, **kwargs: Any) -> Any:
        given = parameters.bind(*args, **kwargs)
        arguments = given.arguments
        group = arguments.get("cp_group")
        labels = arguments.get("labels")
        source = arguments.get("input_ids") if labels is None else labels
        ranks = _size(group)
        EFFECT.calls += 1
        EFFECT.changed += ranks > 1 and source is not None
        if ranks == 1 or source is None:
            return original(*args, **kwargs)
        loss = arguments["compute_language_model_loss"]
        arguments["compute_language_model_loss"] = lambda *a, **k: loss(*a, **k) * ranks
        if arguments["config"].calculate_per_token_loss:
            kept = arguments.get("loss_mask")
            kept = source.new_ones(source.shape) if kept is None else kept
            if labels is None:  # labels are made of tokens by a roll, and the last of them is none
                roll = vars(module)["roll_tensor"]
                kept, _ = roll(kept, cp_group=group, packed_seq_params=arguments.get("packed_seq_params"))
            arguments["config"] = _averaged(arguments["config"], _summed(kept.sum(), group) / ranks)
        token = _IN_LOSSES.set(True)
        try:
            return original(*given.args, **given.kwargs)
        finally:
            _IN_LOSSES.reset(token)

    return process_mtp_loss


def _averaged(config: Any, factor: Any) -> Any:
    """Return a copy of the settings without per-token loss, and with `factor` times the coefficient."""
    settings = copy(config)
    settings.calculate_per_token_loss = False
    settings.mtp_loss_scaling_factor = config.mtp_loss_scaling_factor * factor
    return settings


PATCH = Patch(
    id="megatron.mtp-loss-scale",
    revision=2,
    summary="Multi-token prediction under context parallelism is divided by the tokens of all its ranks",
    why=(
        "The loss of multi-token prediction is a mean over the tokens of one context parallel rank, and is "
        "averaged over the ranks. If a prompt is masked they have different numbers: a token with few others "
        "on its rank weighs more, and where a rank has none, the loss of the others is halved, or is NaN up "
        "to 0.16. With calculate_per_token_loss it is so from 0.17 on; before, only the report is. With the "
        "patch gradient and report are those of one process, at up to four all-reduces of one number for "
        "each depth. Data parallel ranks and micro-batches still divide by their own."
    ),
    changes=("numbers",),
    met="Multi-token prediction (mtp_num_layers) with context parallelism.",
    opt_in=True,
    includes=("megatron.mtp-without-tokens",),
    evidence=(
        "Takes the mean over the tokens of all context parallel ranks, as one process does. Upstream's mean "
        "of ranks' means is open in NVIDIA/Megatron-LM#7498."
    ),
    upstream=("NVIDIA/Megatron-LM#7498", "NVIDIA/Megatron-LM#7452", "NVIDIA/Megatron-LM#3396"),
    targets=one_target(
        MEGATRON,
        variant("0.14", replaced(_ROLL, make_mean_roll), Absent(site=_LOSSES)),
        variant("0.17", replaced(_LOSSES, make_losses), replaced(_ROLL, make_summed_roll)),
    ),
)
