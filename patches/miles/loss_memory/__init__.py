"""`miles.loss-memory`: log-probabilities and entropy whose only tensor of full size is the gradient.

The computation is that of `slime.loss-memory`; what differs is where miles keeps its ranks, and that it says
whether the entropy is part of the loss. Logits that are not float32, as FSDP has them, and the mode that
repeats the rollout engine bit by bit are left to the original.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from overlay.compat.projects import MILES
from overlay.effect import Figure, effect
from overlay.patch import Calls, Patch, one_target, replaced, variant
from overlay.patches._packed_loss.attachment import true_arguments, unattached
from overlay.patches._packed_loss.compute import make_compute

_HUB = "miles.backends.training_utils.loss_hub"
_LOSS = "miles.backends.training_utils.loss:loss_function"
_LOSSES = f"{_HUB}.losses"
_LOG_PROBS = f"{_HUB}.logit_processors:get_log_probs_and_entropy"
_CP = "miles.backends.training_utils.cp_utils"
EFFECT = effect(
    __name__,
    "micro-batch",
    Figure(
        name="kept_out",
        says="the logits of response rows, most at once, of which miles keeps a copy",
        unit="bytes",
        combine="max",
    ),
    did="took the loss of",
    always=True,
    then="at least {kept_out} less at the peak",
)


Lists = dict[str, list[Any]]


class _AsSlime:
    """miles' module of logits, with the names by which slime's loss is asked."""

    def __init__(self, module: ModuleType) -> None:
        """Remember the module, in which names are looked up when they are asked for."""
        self.module = module
        self.mpu = self

    def get_responses(self, logits: Any, **given: Any) -> Any:
        """Yield the rows of each response and their tokens."""
        return self.module.get_responses(logits, **given)

    def slice_log_prob_with_cp(self, values: Any, total_length: int, response_length: int) -> Any:
        """Return this rank's slices of the values of a packed response."""
        from miles.backends.training_utils.cp_utils import slice_log_prob_with_cp

        return slice_log_prob_with_cp(values, total_length, response_length, "thd", None)

    def get_tensor_model_parallel_group(self) -> Any:
        return self.module.get_parallel_state().tp.group

    def get_context_parallel_group(self) -> Any:
        return self.module.get_parallel_state().cp.group

    def get_context_parallel_rank(self) -> int:
        return int(self.module.get_parallel_state().cp.rank)

    def get_context_parallel_world_size(self) -> int:
        return int(self.module.get_parallel_state().cp.size)


def make_log_probs(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build `get_log_probs_and_entropy`."""
    compute = make_compute(_AsSlime(module), EFFECT)

    def get_log_probs_and_entropy(
        logits: Any,
        *,
        args: Any,
        unconcat_tokens: Sequence[Any],
        total_lengths: Sequence[int],
        response_lengths: Sequence[int],
        with_entropy: bool = False,
        entropy_requires_grad: bool = True,
        non_loss_data: bool = True,
        max_seq_lens: Sequence[int] | None = None,
    ) -> Lists:
        if not non_loss_data or not _ours(args, logits):
            theirs: Lists = original(
                logits,
                args=true_arguments(args),
                unconcat_tokens=unconcat_tokens,
                total_lengths=total_lengths,
                response_lengths=response_lengths,
                with_entropy=with_entropy,
                entropy_requires_grad=entropy_requires_grad,
                non_loss_data=non_loss_data,
                max_seq_lens=max_seq_lens,
            )
            return theirs
        more = {"max_seq_lens": max_seq_lens}
        lists = compute(logits, args, with_entropy, unconcat_tokens, total_lengths, response_lengths, **more)
        if with_entropy and not entropy_requires_grad:
            lists["entropy"] = [value.detach() for value in lists["entropy"]]
        return lists

    return get_log_probs_and_entropy


def make_loss(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build `loss_function`, without the zero that miles attaches to all logits under allgather CP."""

    def loss_function(
        args: Any,
        batch: Any,
        num_microbatches: int,
        logits: Any,
        apply_megatron_loss_scaling: bool = False,
        num_rollouts: int | None = None,
    ) -> Any:
        given = unattached(args) if _ours(args, logits) else args
        return original(given, batch, num_microbatches, logits, apply_megatron_loss_scaling, num_rollouts)

    return loss_function


def _ours(args: Any, logits: Any) -> bool:
    """Return whether log-probabilities are computed here. It depends on settings alone: all ranks agree."""
    import torch

    # A temperature that is no divisor is one that miles leaves alone.
    return logits.dtype == torch.float32 and not args.true_on_policy_mode and args.rollout_temperature > 0


PATCH = Patch(
    id="miles.loss-memory",
    summary="Log-probs and entropy of the responses with the gradient as the only full-size tensor",
    why=(
        "miles copies the logits of every response for the log-probabilities and again for the entropy, and "
        "keeps a softmax for the backward: up to three times the logits on top of them with the entropy in "
        "the loss. With the patch the forward keeps a few numbers for each row, the backward computes the "
        "rest again in the gradient itself, and all ranks enter the same collectives whether or not they "
        "have a response token. Logits that are not float32 and --true-on-policy-mode are left to miles."
    ),
    changes=("memory",),
    met=(
        "The policy and SFT losses on float32 logits, without --true-on-policy-mode. "
        "Numbers change by rounding."
    ),
    upstream=("THUDM/slime#1788", "THUDM/slime#2123"),
    evidence=(
        "Log-probabilities, entropy, losses and gradients are those of one process in float64 "
        "(tests/real/test_loss_memory_ranks.py)."
    ),
    targets=one_target(
        MILES,
        variant(
            "0.1",
            replaced(_LOG_PROBS, make_log_probs),
            replaced(_LOSS, make_loss),
            f"{_HUB}.logit_processors:get_responses",
            f"{_CP}:get_logits_and_tokens_offset_with_cp",
            f"{_CP}:slice_log_prob_with_cp",
            f"{_LOSSES}:get_log_probs_and_entropy",
            Calls(site=f"{_LOSSES}:policy_loss_function", callee="get_log_probs_and_entropy"),
            Calls(site=f"{_LOSSES}:sft_loss_function", callee="get_log_probs_and_entropy"),
            "miles.backends.training_utils.parallel:ParallelState",
            "miles.utils.ft_utils.process_group_utils:GroupInfo",
        ),
    ),
)
