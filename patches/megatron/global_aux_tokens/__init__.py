"""`megatron.global-aux-tokens`: experts' counts of all micro-batches are divided by the tokens of all."""

from functools import wraps
from typing import Any

from overlay.compat.projects import MEGATRON
from overlay.effect import effect
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches._rebound import rebound

_SITE = "megatron.core.transformer.moe.router:TopKRouter._apply_global_aux_loss"
_LOSS = "megatron.core.transformer.moe.moe_utils:switch_load_balancing_loss_func"
EFFECT = effect(__name__, "loss", did="divided counts of experts by their own tokens in", always=True)


def make_loss(original: Any, module: Any) -> Any:
    """Return the loss of a router, over counts that are those of as many tokens as it divides by."""

    def balancing_loss(*, tokens_per_expert: Any, total_num_tokens: Any, topk: int, **named: Any) -> Any:
        # Each token is counted topk times, and no token of padding is.
        share = total_num_tokens * topk / tokens_per_expert.sum().clamp(min=1)
        # Of a micro-batch of padding alone the loss is 0, and not 0 / 0.
        counts = {
            "tokens_per_expert": tokens_per_expert * share,
            "total_num_tokens": total_num_tokens + (total_num_tokens == 0),
        }
        EFFECT.changed += 1
        return module.switch_load_balancing_loss_func(**counts, topk=topk, **named)

    return wraps(original)(rebound(original, module, switch_load_balancing_loss_func=balancing_loss))


PATCH = Patch(
    id="megatron.global-aux-tokens",
    summary="global_aux_loss divides all micro-batches' expert counts by all their tokens",
    why="global_aux_loss weighs each expert by its part of the tokens of the micro-batches of a step so far. "
    "Megatron divides the mean of their counts by the tokens of the last micro-batch. Where micro-batches "
    "differ in size, as with packing or padding, loss and gradient are off by the ratio, and depend on the "
    "order; one of padding alone is NaN. With the patch counts are divided by the tokens that they count. "
    "Each data parallel rank still takes the mean of its probabilities over its own tokens.",
    changes=("numbers",),
    met="global_aux_loss with several micro-batches of different numbers of tokens.",
    upstream=("NVIDIA/Megatron-LM#7213", "NVIDIA/Megatron-LM#7214"),
    evidence="The parts of all experts sum to 1, as they do in Megatron with one micro-batch. Upstream's "
    "open NVIDIA/Megatron-LM#7214 computes the same.",
    targets=one_target(MEGATRON, variant("0.15", replaced(_SITE, make_loss), _LOSS)),
)
