"""`megatron.sigmoid-aux-scores`: the balancing loss of a sigmoid router is computed in float32.

The function that makes the scores for that loss is wrapped: it gets logits of float32, as it does from 0.17
on.
"""

from __future__ import annotations

from overlay.compat.projects import MEGATRON
from overlay.patch import Absent, Patch, one_target, replaced, variant
from overlay.patches.megatron.sigmoid_aux_scores.fix import make_method, make_scores

_METHOD = "megatron.core.transformer.moe.router:TopKRouter.compute_routing_scores_for_aux_loss"
_SCORES = "megatron.core.transformer.moe.moe_utils:compute_routing_scores_for_aux_loss"

PATCH = Patch(
    id="megatron.sigmoid-aux-scores",
    summary="The balancing loss of a sigmoid router is computed in float32",
    why=(
        "The scores of which a sigmoid router's load balancing loss is made are computed in the type of "
        "the logits, which is that of the model unless moe_router_dtype says otherwise. In bfloat16 scores "
        "keep three digits, experts tie that do not, so that which of them count as chosen depends on "
        "their order, and the gradient of the router is rounded as coarsely. A softmax router, and the "
        "scores by which tokens are really sent, are computed in float32. With the patch these are too, as "
        "from 0.17 on."
    ),
    changes=("numbers",),
    met=(
        "moe_router_score_function=sigmoid with a load balancing loss (aux_loss, seq_aux_loss, "
        "global_aux_loss) and a coefficient above 0, with logits below float32: moe_router_dtype unset, "
        "the router not fused."
    ),
    evidence=(
        "megatron-core 0.17 computes them in float32 (NVIDIA/Megatron-LM#2765). Scores and gradient are "
        "compared with float64."
    ),
    upstream=("NVIDIA/Megatron-LM#2765",),
    targets=one_target(
        MEGATRON,
        variant(
            "0.12",
            replaced(_METHOD, make_method),
            Absent(site=_SCORES),
        ),
        variant(
            "0.14",
            replaced(_SCORES, make_scores),
        ),
    ),
)
