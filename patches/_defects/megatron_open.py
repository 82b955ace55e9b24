"""What is known to be wrong in Megatron-Core and that no patch fixes: the latest."""

from __future__ import annotations

from overlay.compat.projects import MEGATRON
from overlay.defect import above, among, beyond, given, switched
from overlay.patches._defects._short_forms import all_of, by_harm

_AUX = above("moe_aux_loss_coeff", 0)
_EXPERTS = given("num_experts")

_silent, *_ = by_harm(MEGATRON)

DEFECTS = (
    _silent(
        id="megatron.global-aux-counts",
        summary="global_aux_loss takes the mean of the experts' counts over the micro-batches of a step, and "
        "divides it by the tokens of the last one. Where micro-batches differ in size, the loss and its "
        "gradient are off by the ratio.",
        met="global_aux_loss with several micro-batches of different sizes.",
        when=all_of(
            _EXPERTS,
            among("moe_router_load_balancing_type", "global_aux_loss"),
            _AUX,
            beyond("micro-batches have different numbers of tokens"),
        ),
        sites=("megatron.core.transformer.moe.router:TopKRouter._apply_global_aux_loss",),
        upstream=("NVIDIA/Megatron-LM#7213",),
        shown="read",
        way_out="micro-batches of one size",
    ),
    _silent(
        id="megatron.fused-mla-rope-heads",
        summary="The fused rotary embedding of multi-latent attention works on blocks of heads in place. The "
        "last block of a token also rotates heads of the next token, unless its size divides the number of "
        "heads.",
        met="apply_rope_fusion with multi_latent_attention, and heads of a rank that are no multiple of the "
        "block that Triton chooses.",
        when=all_of(
            switched("multi_latent_attention"),
            switched("apply_rope_fusion"),
            beyond("the heads of a rank are no multiple of the block that Triton chooses"),
        ),
        sites=(
            "megatron.core.fusions.fused_mla_yarn_rope_apply:_mla_rope_fwd_inplace_kernel",
            "megatron.core.fusions.fused_mla_yarn_rope_apply:rotary_fwd_q_kernel",
        ),
        upstream=("NVIDIA/Megatron-LM#5963", "NVIDIA/Megatron-LM#7103"),
        shown="read",
        way_out="leave apply_rope_fusion off",
    ),
)
