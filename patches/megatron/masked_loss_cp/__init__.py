"""`megatron.masked-loss-cp`: a masked loss is divided by the tokens of all context parallel ranks."""

from collections.abc import Callable
from inspect import signature
from typing import Any

from overlay.compat.projects import MEGATRON
from overlay.effect import effect
from overlay.patch import Patch, around, one_target, replaced, variant

EFFECT = effect(__name__, "micro-batch", did="weighed the loss of", always=True)
#: What a loss function returns that leaves the division to Megatron: a sum, a number of tokens, a report.
PARTS = 3
#: Settings by which sequences get context parallel groups of their own.
CHANGING = ("hybrid_context_parallel", "dynamic_context_parallel")


@around
def calc_loss(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Hand on a loss that is as much larger as its divisor is too small."""
    given = signature(original).bind(*args, **kwargs)
    given.apply_defaults()
    arguments = given.arguments
    config = arguments["config"]
    # Groups that change from one micro-batch to the next: not all ranks of the static one are in a step.
    changing = any(getattr(config, name, False) for name in CHANGING)
    if not (changing or config.calculate_per_token_loss or arguments["loss_func"] is None):
        arguments["loss_func"] = _over_all_ranks(arguments["loss_func"], arguments["cp_group_size"])
    return original(*given.args, **given.kwargs)


def _over_all_ranks(loss_func: Callable[..., Any], size: int | None) -> Callable[..., Any]:
    """Wrap a loss function. What is no sum with a number of tokens is returned as it is.

    Upstream divides the sum by this rank's tokens, at least one, and averages over the ranks. For the sum of
    all ranks over the tokens of all, a rank's part has to weigh as much as it has of the tokens.
    """

    def loss(*args: Any, **kwargs: Any) -> Any:
        import torch
        from megatron.core import parallel_state

        outputs = loss_func(*args, **kwargs)
        ranks = parallel_state.get_context_parallel_world_size()
        # Groups of one's own, of another size, cannot be asked for from here.
        other = kwargs.get("non_loss_data") or not isinstance(outputs, tuple) or len(outputs) != PARTS
        if ranks == 1 or size not in (None, ranks) or other:
            return outputs
        EFFECT.changed += 1
        summed, tokens, reduced = outputs
        divisor = torch.as_tensor(tokens, device=summed.device).detach()
        total = divisor.clone().to(torch.float64)
        torch.distributed.all_reduce(total, group=parallel_state.get_context_parallel_group())
        divisor = divisor.clamp(min=1)  # 0.14 divides by none
        share = divisor * ranks / total.clamp(min=1)
        return summed * share.to(summed.dtype), divisor, reduced

    return loss


PATCH = Patch(
    id="megatron.masked-loss-cp",
    summary="A masked loss under context parallelism is divided by the tokens of all its ranks",
    why="Without calculate_per_token_loss, Megatron divides a sum of losses by the tokens of its own context "
    "parallel rank, and averages over the ranks. If a prompt is masked, a token with few others on its rank "
    "weighs more, and where a rank has none, the loss of the others is halved, or is NaN in 0.14. With the "
    "patch the sum of all ranks is divided by the tokens of all, in one more all-reduce of one number. Data "
    "parallel ranks still divide by their own.",
    changes=("numbers",),
    met="Context parallelism without calculate_per_token_loss, and a loss function that returns a sum, a "
    "number of tokens and a report, as that of Megatron's pretrain_gpt.py.",
    opt_in=True,
    evidence="Takes the mean over the tokens of all context parallel ranks, as one process does. Upstream's "
    "mean of ranks' means is open in NVIDIA/Megatron-LM#7513.",
    upstream=("NVIDIA/Megatron-LM#7513", "NVIDIA/Megatron-LM#7452", "NVIDIA/Megatron-LM#1764"),
    targets=one_target(
        MEGATRON,
        variant(
            "0.14", replaced("megatron.core.pipeline_parallel.schedules:forward_step_calc_loss", calc_loss)
        ),
    ),
)
