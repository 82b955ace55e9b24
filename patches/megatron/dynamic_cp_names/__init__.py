"""`megatron.dynamic-cp-names`: dynamic context parallelism on a released Megatron-Core.

Megatron-Core 0.16 to 0.19 has it under the name of hybrid context parallelism, and not all of it. What verl
asks of Megatron's development branch is made of that: the keyword and the groups here, what attention needs
in `overlay.patches._dynamic_cp.attention`.
"""

from __future__ import annotations

from overlay.compat.projects import MEGATRON, VERL
from overlay.patch import Patch, Target, replaced, variant
from overlay.patches._dynamic_cp.attention import make_attention_forward
from overlay.patches.megatron.dynamic_cp_names.fix import (
    KEYWORD,
    make_destroy,
    make_getter,
    make_initialize,
    make_settings,
)

_STATE = "megatron.core.parallel_state"
_TE = "megatron.core.extensions.transformer_engine:TEDotProductAttention"
_ROPE = "megatron.core.models.common.embeddings.rope_utils"
_GETTER = f"{_STATE}:get_dynamic_data_context_parallel_groups"

PATCH = Patch(
    id="megatron.dynamic-cp-names",
    summary="Dynamic context parallelism for verl on a released Megatron-Core",
    why=(
        "verl 0.8 asks Megatron for dynamic context parallelism by names that only its development branch "
        "has. Megatron-Core 0.16 to 0.19 has the groups under another name, without those of one rank, does "
        "not warm them up or forget them, computes a micro-batch's rotary positions in the static group, "
        "which fails or is silently wrong with fused kernels, and leaves Transformer Engine's attention in "
        "the group of the last micro-batch. With the patch the keyword, the getter and the groups are there, "
        "and attention works in the group of its micro-batch and in no other."
    ),
    changes=("numbers", "crashes"),
    met="verl's dynamic_context_parallel=True on a released Megatron-Core.",
    evidence=(
        "The gradients of a step on ranks are compared with those of one process. Without the patch "
        "verl's dynamic_context_parallel=True raises on these releases, so that no job that runs is "
        "changed."
    ),
    upstream=("verl-project/verl#5057", "NVIDIA/Megatron-LM#3405"),
    targets=(
        Target(
            project=MEGATRON,
            serves=VERL.name,
            variants=(
                variant(
                    "0.16",
                    replaced(f"{_STATE}:initialize_model_parallel", make_initialize, adds=(KEYWORD,)),
                    replaced(f"{_STATE}:destroy_model_parallel", make_destroy),
                    f"{_STATE}:get_hybrid_data_context_parallel_groups",
                    f"{_STATE}:create_hybrid_dp_cp_groups",
                    replaced("megatron.core.transformer.attention:Attention.forward", make_attention_forward),
                    f"{_TE}.forward",
                    f"{_ROPE}:apply_rotary_pos_emb",
                    f"{_ROPE}:_apply_rotary_pos_emb_thd",
                    f"{_ROPE}:_get_thd_freqs_on_this_cp_rank",
                    "megatron.core.models.gpt.gpt_model:GPTModel._preprocess",
                    "megatron.core.packed_seq_params:PackedSeqParams",
                    replaced(_GETTER, make_getter, new=True),
                ),
            ),
            tells=(f"{_STATE}:create_dynamic_dp_cp_groups",),
        ),
        Target(
            project=VERL,
            optional=True,
            variants=(
                variant(
                    "0.8",
                    replaced("verl.utils.megatron_utils:mapping_string_to_attn_backend", make_settings),
                    "verl.workers.engine.megatron.transformer_impl:MegatronEngine._build_tf_config",
                ),
            ),
            tells=(
                "verl.utils.dynamic_cp_scheduler",
                "verl.utils.megatron_utils:dynamic_cp_split_batch",
            ),
        ),
    ),
)
