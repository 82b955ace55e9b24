"""`miles.loss-memory`: what `slime.loss-memory` computes, on float32 logits."""

from functools import wraps
from types import SimpleNamespace
from typing import Any

from overlay.compat.projects import MILES
from overlay.patch import Calls, Patch, around, one_target, replaced, variant
from overlay.patches._packed_loss.attachment import true_arguments, unattached
from overlay.patches._packed_loss.compute import effect_of, make_compute

_HUB = "miles.backends.training_utils.loss_hub"
_LOSS = "miles.backends.training_utils.loss"
_LOSSES = f"{_HUB}.losses"
_LOG_PROBS = f"{_HUB}.logit_processors:get_log_probs_and_entropy"
_CP = "miles.backends.training_utils.cp_utils"
_PARALLEL = "miles.backends.training_utils.parallel"
EFFECT = effect_of(__name__, "miles")


def _as_slime(module: Any) -> Any:
    """Return miles' module of logits, with the names by which slime's loss is asked."""
    from miles.backends.training_utils.cp_utils import slice_log_prob_with_cp

    return SimpleNamespace(
        get_responses=module.get_responses,
        # This rank's slices of the values of a packed response.
        slice_log_prob_with_cp=lambda *sample: slice_log_prob_with_cp(*sample, "thd", None),
        mpu=SimpleNamespace(
            get_tensor_model_parallel_group=lambda: module.get_parallel_state().tp.group,
            get_context_parallel_group=lambda: module.get_parallel_state().cp.group,
            get_context_parallel_rank=lambda: int(module.get_parallel_state().cp.rank),
            get_context_parallel_world_size=lambda: int(module.get_parallel_state().cp.size),
        ),
    )


def make_log_probs(original: Any, module: Any) -> Any:
    """Build `get_log_probs_and_entropy`."""
    compute = make_compute(_as_slime(module), EFFECT)

    def get_log_probs_and_entropy(logits: Any, *, args: Any, non_loss_data: bool = True, **given: Any) -> Any:
        if not non_loss_data or not _ours(args, logits):
            return original(logits, args=true_arguments(args), non_loss_data=non_loss_data, **given)
        # 0.0.2 has no such option.
        entropy_requires_grad = given.pop("entropy_requires_grad", True)
        lists = compute(logits, args, given.pop("with_entropy", False), **given)
        if "entropy" in lists and not entropy_requires_grad:
            lists["entropy"] = [value.detach() for value in lists["entropy"]]
        return lists

    return wraps(original)(get_log_probs_and_entropy)


@around
def loss(
    original: Any, args: Any, batch: Any, num_microbatches: int, logits: Any, *given: Any, **named: Any
) -> Any:
    """Compute a loss without the zero that miles attaches to all logits under allgather CP."""
    plain = unattached(args) if _ours(args, logits) else args
    return original(plain, batch, num_microbatches, logits, *given, **named)


def _ours(args: Any, logits: Any) -> bool:
    """Return whether log-probabilities are computed here. It depends on settings alone: all ranks agree."""
    import torch

    # A temperature that is no divisor is one that miles leaves alone.
    return logits.dtype == torch.float32 and not args.true_on_policy_mode and args.rollout_temperature > 0


PATCH = Patch(
    id="miles.loss-memory",
    summary="Log-probs and entropy of the responses with the gradient as the only full-size tensor",
    why="miles copies the logits of every response for the log-probabilities and again for the entropy, and "
    "keeps a softmax for the backward: up to three times the logits, and four times in 0.0.2. With the patch "
    "the forward keeps a few numbers for each row, the backward computes the rest again in the gradient "
    "itself, and all ranks enter the same collectives. Logits that are not float32 and "
    "--true-on-policy-mode are left to miles.",
    changes=("memory",),
    met="Policy and SFT losses on float32 logits. Numbers change by rounding.",
    upstream=("THUDM/slime#1788", "THUDM/slime#2123"),
    evidence="Log-probabilities, entropy, losses and gradients are those of one process in float64 "
    "(tests/real/test_loss_memory_ranks.py).",
    targets=one_target(
        MILES,
        variant(
            "0.0.2",
            replaced(f"{_LOSS}:get_log_probs_and_entropy", make_log_probs),
            replaced(f"{_LOSS}:loss_function", loss),
            f"{_LOSS}:get_responses",
            f"{_CP}:get_logits_and_tokens_offset_with_cp",
            f"{_CP}:slice_log_prob_with_cp",
            Calls(site=f"{_LOSS}:policy_loss_function", callee="get_log_probs_and_entropy"),
            Calls(site=f"{_LOSS}:sft_loss_function", callee="get_log_probs_and_entropy"),
            f"{_PARALLEL}:ParallelState",
            f"{_PARALLEL}:GroupInfo",
        ),
        variant(
            "0.1",
            replaced(_LOG_PROBS, make_log_probs),
            replaced(f"{_LOSS}:loss_function", loss),
            f"{_HUB}.logit_processors:get_responses",
            f"{_CP}:get_logits_and_tokens_offset_with_cp",
            f"{_CP}:slice_log_prob_with_cp",
            f"{_LOSSES}:get_log_probs_and_entropy",
            Calls(site=f"{_LOSSES}:policy_loss_function", callee="get_log_probs_and_entropy"),
            Calls(site=f"{_LOSSES}:sft_loss_function", callee="get_log_probs_and_entropy"),
            f"{_PARALLEL}:ParallelState",
            "miles.utils.ft_utils.process_group_utils:GroupInfo",
        ),
    ),
)
