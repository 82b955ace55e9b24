"""What is known to be wrong in Megatron-Core and that no patch fixes: the latest."""

from __future__ import annotations

from overlay.compat.projects import MEGATRON
from overlay.defect import beyond, switched
from overlay.patches._defects._short_forms import all_of, by_harm

_silent, *_ = by_harm(MEGATRON)
_BUFFER = "megatron.core.distributed.param_and_grad_buffer"

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
        way_out="apply_rope_fusion=False (command line: --no-rope-fusion)",
    ),
    _silent(
        id="megatron.mxfp8-offsets-unaligned",
        summary="MXFP8 weights are shifted behind a weight whose size is no multiple of 64.",
        met="reuse_grad_buf_for_mxfp8_param_ag, and parameters of sizes that are no multiples of 64.",
        when=all_of(
            switched("reuse_grad_buf_for_mxfp8_param_ag"),
            beyond("the size of a parameter is no multiple of 64"),
        ),
        # The second reads the offsets from 0.14 on.
        sites=(
            f"{_BUFFER}:_ParamAndGradBucket.__init__",
            f"{_BUFFER}:_ParamAndGradBucketGroup.finish_param_sync",
        ),
        upstream=("NVIDIA/Megatron-LM#3007",),
        fixed="0.17.0",
        way_out="leave out both --reuse-grad-buf-for-mxfp8-param-ag and --fp8-param-gather: leaving out only "
        "the first ends in NotImplementedError",
    ),
)
