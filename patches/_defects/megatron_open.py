"""What is known to be wrong in Megatron-Core and that no patch fixes: the latest."""

from __future__ import annotations

from overlay.compat.projects import MEGATRON
from overlay.defect import beyond, switched
from overlay.patches._defects._short_forms import all_of, by_harm

_silent, *_ = by_harm(MEGATRON)

DEFECTS = (
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
