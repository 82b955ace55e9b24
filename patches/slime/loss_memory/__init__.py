"""`slime.loss-memory`: log-probabilities and entropy whose only tensor of full size is the gradient.

The original is replaced as a whole: cutting the logits apart, a copy for each use and a softmax kept for the
backward are what it consists of. Which rows belong to which sample is asked of slime's own `get_responses`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from overlay.compat.projects import SLIME
from overlay.patch import Calls, Patch, Variant, one_target, replaced, variant
from overlay.patches.slime.loss_memory.fix import (
    make_loss,
    make_packed,
    make_packed_pair,
    make_padded,
    make_paired,
    make_step_loss,
    make_step_loss_with_top_p,
    make_values,
    make_with_top_p,
)

_LOSS = "slime.backends.megatron_utils.loss"
_CP = "slime.backends.megatron_utils.cp_utils"
_SITE = f"{_LOSS}:get_log_probs_and_entropy"
_LOSS_FUNCTION = f"{_LOSS}:loss_function"
_VALUES = f"{_LOSS}:get_values"


def _variant(
    name: str,
    make: Callable[..., Any],
    *,
    slices: bool = False,
    loss: Callable[..., Any] | None = None,
    values: bool = False,
) -> Variant:
    """Return a variant by its factories, and by what says which rows are whose.

    Of the latter all is relied on: a change anywhere in it gives other rows.
    """
    parts: list[Any] = [
        replaced(_SITE, make),
        f"{_LOSS}:get_responses",
        f"{_CP}:get_logits_and_tokens_offset_with_cp",
    ]
    if slices:
        parts.append(f"{_CP}:slice_log_prob_with_cp")
    losses = ["policy_loss_function"]
    if loss is not None:
        # It loses its zero too, so every rank has to get there.
        losses.append("sft_loss_function")
        parts.append(replaced(_LOSS_FUNCTION, loss))
    if values:
        parts.append(replaced(_VALUES, make_values))
    # Whatever else they compute, it is from here that they have their log-probabilities.
    parts += [Calls(site=f"{_LOSS}:{one}", callee="get_log_probs_and_entropy") for one in losses]
    return variant(name, *parts)


PATCH = Patch(
    id="slime.loss-memory",
    summary="Log-probs and entropy of the responses with the gradient as the only full-size tensor",
    why=(
        "slime's loss copies the logits of every response for the log-probabilities and again for the "
        "entropy, and keeps a softmax for each: three to four times the logits on top of them, which is "
        "where runs on slime 0.2 end for lack of memory. The first cure (slime#1788) stopped the jobs that "
        "use allgather context parallelism and was half taken back, and 0.3.1 still needs two to three times "
        "the logits. With the patch the forward keeps a few numbers for each row, the backward computes the "
        "rest again in the gradient itself, and all ranks enter the same collectives whether or not they "
        "have a response token."
    ),
    changes=("memory",),
    met="Every job that trains with slime's policy or SFT loss. Numbers change by rounding.",
    upstream=(
        "THUDM/slime#1788",
        "THUDM/slime#1822",
        "THUDM/slime#2123",
        "THUDM/slime#2144",
        "THUDM/slime#1951",
    ),
    evidence=(
        "Log-probabilities, entropy, losses and gradients are those of one process in float64, on ranks of "
        "tensor and context parallelism (tests/real/test_loss_memory_ranks.py)."
    ),
    targets=one_target(
        SLIME,
        _variant("0.2.0", make_packed),
        _variant("0.2.2", make_padded),
        _variant("after 0.2.2", make_paired),
        _variant("0.2.3", make_paired, slices=True, loss=make_loss, values=True),
        _variant("before 0.3.0", make_paired, slices=True, loss=make_step_loss, values=True),
        _variant("after 0.3.0", make_packed_pair, slices=True, loss=make_step_loss),
        _variant("0.3.1", make_with_top_p, slices=True, loss=make_step_loss_with_top_p),
    ),
)
