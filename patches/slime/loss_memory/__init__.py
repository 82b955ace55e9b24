"""`slime.loss-memory`: log-probabilities and entropy whose only tensor of full size is the gradient."""

from functools import wraps
from typing import Any

from overlay.compat.projects import SLIME
from overlay.patch import Calls, Patch, around, one_target, replaced, variant
from overlay.patches._packed_loss.attachment import true_arguments, unattached
from overlay.patches._packed_loss.compute import effect_of, is_contiguous, make_compute

_LOSS = "slime.backends.megatron_utils.loss"
_CP = "slime.backends.megatron_utils.cp_utils"
EFFECT = effect_of(__name__, "slime")


def make_lists(original: Any, module: Any) -> Any:
    """Build `get_log_probs_and_entropy` of slime 0.2.0 to 0.2.2, which returns lists by name."""
    compute = make_compute(module, EFFECT)

    def get_log_probs_and_entropy(
        logits: Any, *, args: Any, with_entropy: bool = False, non_loss_data: bool = True, **batch: Any
    ) -> Any:
        import torch

        # As upstream; shapes are refused by `get_responses`.
        if not non_loss_data or logits.dtype != torch.float32:
            raise AssertionError(
                f"logits must be float32, and non_loss_data true: {logits.dtype}, {non_loss_data}"
            )
        return compute(logits, args, with_entropy, **batch)

    return wraps(original)(get_log_probs_and_entropy)


def make_pair(original: Any, module: Any) -> Any:
    """Build it for slime from 0.2.3 on, which returns an empty tensor first. Top-p sets are left to slime."""
    lists = make_lists(original, module)

    def get_log_probs_and_entropy(
        logits: Any, *, top_p_token_ids: Any = None, top_p_token_offsets: Any = None, **given: Any
    ) -> Any:
        if top_p_token_ids is None or top_p_token_offsets is None:
            return logits.new_empty(0), lists(logits, **given)
        given |= {"top_p_token_ids": top_p_token_ids, "top_p_token_offsets": top_p_token_offsets}
        return original(logits, **{**given, "args": true_arguments(given["args"])})

    return wraps(original)(get_log_probs_and_entropy)


def make_values(original: Any, module: Any) -> Any:
    """Wrap `get_values` of slime 0.2.3 to 0.3.0: the critic's values have no other rows than log-probs."""

    def get_values(logits: Any, *, args: Any, **given: Any) -> Any:
        is_contiguous(args, module.mpu)
        return original(logits, args=args, **given)

    return wraps(original)(get_values)


@around
def loss(original: Any, args: Any, *given: Any, **named: Any) -> Any:
    """Compute a loss of slime 0.2.3 to 0.3.0."""
    return original(unattached(args), *given, **named)


@around
def loss_with_top_p(original: Any, args: Any, *given: Any, **named: Any) -> Any:
    """Compute a loss of slime 0.3.1: with top-p sets the log-probabilities are upstream's own."""
    return original(unattached(args) if args.rollout_top_p == 1 else args, *given, **named)


_LISTS = f"{_LOSS}:get_log_probs_and_entropy"
#: What says which rows are whose: a change anywhere in it gives other rows.
_ROWS = (f"{_LOSS}:get_responses", f"{_CP}:get_logits_and_tokens_offset_with_cp")
#: Whatever else they compute, it is from there that they have their log-probabilities.
_POLICY, _SFT = (
    Calls(site=f"{_LOSS}:{name}_loss_function", callee="get_log_probs_and_entropy")
    for name in ("policy", "sft")
)
#: From 0.2.3 on. SFT's loss loses its zero too, so every rank has to get there.
_LATER = (
    replaced(_LISTS, make_pair),
    f"{_CP}:slice_log_prob_with_cp",
    *_ROWS,
    _POLICY,
    _SFT,
)


PATCH = Patch(
    id="slime.loss-memory",
    summary="Log-probs and entropy of the responses with the gradient as the only full-size tensor",
    why="slime's loss copies the logits of every response for the log-probabilities and again for the "
    "entropy, and keeps a softmax for each. Beyond the logits themselves it takes up to 4.5 times their size "
    "before 0.3.1; 0.3.1 takes up to 3 times on a CPU, and 1 to 2 times on a GPU. With the patch the forward "
    "keeps a few numbers for each row, the backward computes the rest again in the gradient itself, and all "
    "ranks enter the same collectives.",
    changes=("memory",),
    met="Every job that trains with slime's policy or SFT loss. Numbers change by rounding; a custom loss "
    "also gets the entropy's gradient, which 0.3.1 and main drop if entropy_coef is 0. On a GPU 0.3.1's own "
    "loss is 1.5 to 3 times as fast, unless it runs in chunks or few rows are responses: if memory is not "
    "short there, leave the patch out.",
    upstream=tuple(f"THUDM/slime#{number}" for number in (1788, 1822, 2123, 2144, 1951)),
    evidence="Log-probabilities, entropy, losses and gradients are those of one process in float64, under "
    "tensor and context parallelism (tests/real/test_loss_memory_ranks.py).",
    targets=one_target(
        SLIME,
        variant("0.2.0", replaced(_LISTS, make_lists), *_ROWS, _POLICY),
        variant(
            "0.2.3",
            replaced(f"{_LOSS}:get_values", make_values),
            replaced(f"{_LOSS}:loss_function", loss),
            *_LATER,
        ),
        variant("0.3.1", replaced(f"{_LOSS}:loss_function", loss_with_top_p), *_LATER),
    ),
)
