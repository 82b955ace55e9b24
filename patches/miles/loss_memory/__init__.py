"""`miles.loss-memory`: log-probabilities and entropy whose only tensor of full size is the gradient.

The computation is that of `slime.loss-memory`; what differs is where miles keeps its ranks, and that it says
whether the entropy is part of the loss. Logits that are not float32, as FSDP has them, and the mode that
repeats the rollout engine bit by bit are left to the original.
"""

from __future__ import annotations

from overlay.compat.projects import MILES
from overlay.patch import Calls, Patch, one_target, replaced, variant
from overlay.patches.miles.loss_memory.fix import make_log_probs, make_loss

_HUB = "miles.backends.training_utils.loss_hub"
_LOSS = "miles.backends.training_utils.loss:loss_function"
_LOSSES = f"{_HUB}.losses"
_LOG_PROBS = f"{_HUB}.logit_processors:get_log_probs_and_entropy"
_CP = "miles.backends.training_utils.cp_utils"

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
