"""`megatron.mtp-loss-scale`: its loss is divided by the tokens of all context parallel ranks."""

from contextvars import ContextVar
from copy import copy
from inspect import signature
from typing import Any

from overlay.compat.projects import MEGATRON
from overlay.effect import effect
from overlay.patch import Absent, Patch, around, one_target, replaced, variant

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


@around
def mean_roll(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Divide the losses of 0.14 to 0.16, which are divided by the number that this returns.

    The gradient and the report are averaged over context parallel ranks. So each divides its part by the
    average of their numbers, for the sum of all over the tokens of all. Without any token it is one token.
    """
    rolled, count = original(*args, **kwargs)
    group = signature(original).bind(*args, **kwargs).arguments.get("cp_group")
    ranks = _size(group)
    EFFECT.calls += 1
    EFFECT.changed += ranks > 1
    return rolled, (count if ranks == 1 else _summed(count, group)).clamp(min=1) / ranks


@around
def summed_roll(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Count the tokens of all ranks within the losses of 0.17 and later."""
    rolled, count = original(*args, **kwargs)
    if not _IN_LOSSES.get():
        return rolled, count
    group = signature(original).bind(*args, **kwargs).arguments.get("cp_group")
    return rolled, _summed(count, group) if _size(group) > 1 else count


@around
def losses(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Compute the losses, which divide by what the rolls count, and are averaged or added up over ranks.

    A loss of a token is multiplied by the ranks that the report, and without per-token loss the gradient, is
    averaged over. With it the gradient is added up and divided by the tokens of the main loss, so a loss is
    to be multiplied by these. Upstream multiplies by a rank's own, which may be none. That is left out, and
    the factor goes into the coefficient.
    """
    given = signature(original).bind(*args, **kwargs)
    arguments = given.arguments
    group, labels = arguments.get("cp_group"), arguments.get("labels")
    source = arguments.get("input_ids") if labels is None else labels
    ranks = _size(group)
    EFFECT.calls += 1
    EFFECT.changed += ranks > 1 and source is not None
    if ranks == 1 or source is None:
        return original(*args, **kwargs)
    loss = arguments["compute_language_model_loss"]
    arguments["compute_language_model_loss"] = lambda *a, **k: loss(*a, **k) * ranks
    if (config := arguments["config"]).calculate_per_token_loss:
        kept = arguments.get("loss_mask")
        kept = source.new_ones(source.shape) if kept is None else kept
        if labels is None:  # labels are made of tokens by a roll, and the last of them is none
            from megatron.core.transformer.multi_token_prediction import roll_tensor

            kept, _ = roll_tensor(kept, cp_group=group, packed_seq_params=arguments.get("packed_seq_params"))
        arguments["config"] = settings = copy(config)
        settings.calculate_per_token_loss = False
        settings.mtp_loss_scaling_factor = config.mtp_loss_scaling_factor * _summed(kept.sum(), group) / ranks
    token = _IN_LOSSES.set(True)
    try:
        return original(*given.args, **given.kwargs)
    finally:
        _IN_LOSSES.reset(token)


PATCH = Patch(
    id="megatron.mtp-loss-scale",
    summary="The multi-token prediction loss is divided by the tokens of all context parallel ranks",
    why="The loss of multi-token prediction is a mean over the tokens of one context parallel rank, and is "
    "averaged over the ranks. If a prompt is masked, a token with few others on its rank weighs more, and "
    "where a rank has none, the loss of the others is halved, or is NaN up to 0.16. With "
    "calculate_per_token_loss it is so from 0.17 on; before, only the report is. With the patch gradient and "
    "report are those of one process, at up to four all-reduces of one number for each depth. Data parallel "
    "ranks and micro-batches still divide by their own.",
    changes=("numbers",),
    met="Multi-token prediction (mtp_num_layers) with context parallelism.",
    opt_in=True,
    includes=("megatron.mtp-without-tokens",),
    evidence="Takes the mean over the tokens of all context parallel ranks, as one process does. Upstream's "
    "mean of ranks' means is open in NVIDIA/Megatron-LM#7498.",
    upstream=("NVIDIA/Megatron-LM#7498", "NVIDIA/Megatron-LM#7452", "NVIDIA/Megatron-LM#3396"),
    targets=one_target(
        MEGATRON,
        variant("0.14", replaced(_ROLL, mean_roll), Absent(site=_LOSSES)),
        variant("0.17", replaced(_LOSSES, losses), replaced(_ROLL, summed_roll)),
    ),
)
