"""`megatron.sigmoid-aux-scores`: the balancing loss of a sigmoid router is computed in float32."""

from typing import Any

from overlay.compat.projects import MEGATRON
from overlay.effect import effect
from overlay.patch import Absent, Patch, around, one_target, replaced, variant

_METHOD = "megatron.core.transformer.moe.router:TopKRouter.compute_routing_scores_for_aux_loss"
_SCORES = "megatron.core.transformer.moe.moe_utils:compute_routing_scores_for_aux_loss"
EFFECT = effect(__name__, "call", did="widened the logits of")


def _wide(logits: Any) -> Any:
    """Return logits as float32, unless they are as wide already."""
    import torch

    # Not narrower: with moe_router_dtype=fp64 they are float64.
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    EFFECT.calls += 1
    EFFECT.changed += wide is not logits
    return wide


@around
def scores(
    original: Any, logits: Any, topk: int, score_function: str, fused: bool = False, *args: Any, **more: Any
) -> Any:
    """Widen the logits of 0.14 to 0.16. Fused, it is a kernel that does as it likes, and stays as it is."""
    wide = logits if fused or score_function != "sigmoid" else _wide(logits)
    return original(wide, topk, score_function, fused, *args, **more)


@around
def method(original: Any, self: Any, logits: Any) -> Any:
    """Widen the logits of 0.12 and 0.13."""
    return original(self, _wide(logits) if self.score_function == "sigmoid" else logits)


PATCH = Patch(
    id="megatron.sigmoid-aux-scores",
    summary="The balancing loss of a sigmoid router is computed in float32",
    why="The scores for a sigmoid router's load balancing loss are computed in the type of the logits. In "
    "bfloat16 they keep three digits: experts tie that do not, and the router's gradient is as coarse. A "
    "softmax router, and from 0.14 on the scores by which tokens are sent, are computed in float32.",
    changes=("numbers",),
    met="moe_router_score_function=sigmoid with a load balancing loss and a coefficient above 0, with logits "
    "below float32: moe_router_dtype unset, the router not fused.",
    evidence="megatron-core 0.17 computes them in float32 (NVIDIA/Megatron-LM#2765).",
    upstream=("NVIDIA/Megatron-LM#2765",),
    targets=one_target(
        MEGATRON,
        variant("0.12", replaced(_METHOD, method), Absent(site=_SCORES)),
        variant("0.14", replaced(_SCORES, scores)),
    ),
)
