"""`megatron.dynamic-cp-names`: dynamic context parallelism on a released Megatron-Core.

Megatron-Core 0.16 to 0.19 has it under the name of hybrid context parallelism, and not all of it. What verl
asks of Megatron's development branch is made of that: the keyword and the groups here, what attention needs
in `overlay.patches._dynamic_cp.attention`.
"""

from __future__ import annotations

from overlay.compat.projects import MEGATRON, VERL
from overlay.patch import (
    Absent,
    Fields,
    Patch,
    Present,
    Removal,
    Target,
    fixed,
    known,
    not_affected,
    replaced,
    superseded,
    variant,
)
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
    remove=Removal(
        when="a released megatron-core has dynamic context parallelism by the names that verl asks for",
        test="tests/distributed/test_dynamic_cp_names.py::test_upstream_alone_has_what_verl_asks_for",
    ),
    targets=(
        Target(
            project=MEGATRON,
            serves=VERL.name,
            variants=(
                # Digests: megatron-core 0.16.1, 0.17.1, 0.18.2, 0.19.2, as far as these differ.
                variant(
                    "0.16",
                    ">=0.16.0.dev0,<0.20.0.dev0",
                    replaced(
                        f"{_STATE}:initialize_model_parallel",
                        make_initialize,
                        *("a871165220b6", "de9d2ef625c3", "60c588df03ae", "49fa6765822a"),
                        adds=(KEYWORD,),
                    ),
                    replaced(
                        f"{_STATE}:destroy_model_parallel",
                        make_destroy,
                        *("6d96a7aa57d4", "8bd274109701", "d65cc523f0b7", "5e950dea7dcf"),
                    ),
                    # Relied on as a whole. The groups hold the ranks that these two lay out.
                    known(f"{_STATE}:get_hybrid_data_context_parallel_groups", "99fb74b1ef01"),
                    known(f"{_STATE}:create_hybrid_dp_cp_groups", "64476f66c527"),
                    replaced(
                        "megatron.core.transformer.attention:Attention.forward",
                        make_attention_forward,
                        *("d5e3e7f55b04", "e319eaf02b06", "1436aa006fed"),
                    ),
                    # Sets the group of a micro-batch, or none. One call here or in `_preprocess` that did not
                    # hand on the micro-batch's group would be silently wrong.
                    known(f"{_TE}.forward", "121a519b94fb", "4c4080befa9b"),
                    # Rotary positions are the very numbers that these three compute.
                    known(f"{_ROPE}:apply_rotary_pos_emb", "fe44030439ff", "8ed84752f274", "e8b6847e9612"),
                    known(f"{_ROPE}:_apply_rotary_pos_emb_thd", "c97233a7231d", "20bb4c96f4c8"),
                    known(f"{_ROPE}:_get_thd_freqs_on_this_cp_rank", "3ef986d546f9"),
                    known(
                        "megatron.core.models.gpt.gpt_model:GPTModel._preprocess",
                        *("574e4f09190c", "1a8171560e08", "3d6d27e61034"),
                    ),
                    # A micro-batch names its group, and one that is told of none has none.
                    Fields(
                        site="megatron.core.packed_seq_params:PackedSeqParams",
                        names=("local_cp_size", "cp_group"),
                        default="None",
                    ),
                    replaced(_GETTER, make_getter, new=True),
                ),
                fixed(
                    "dev",
                    ">=0.16.0.dev0",
                    Present(site=_GETTER),
                    Present(site=f"{_STATE}:create_dynamic_dp_cp_groups"),
                    reason="this Megatron has dynamic context parallelism by the names that verl asks for",
                ),
                not_affected(
                    "0.15",
                    "<0.16.0.dev0",
                    Absent(site=_GETTER),
                    Absent(site=f"{_STATE}:create_hybrid_dp_cp_groups"),
                    reason=(
                        "this Megatron has no groups of a micro-batch under any name: verl 0.8 refuses "
                        "dynamic_context_parallel=True on it, which takes megatron-core 0.16 or later"
                    ),
                ),
            ),
        ),
        Target(
            project=VERL,
            optional=True,
            variants=(
                variant(
                    "0.8",
                    ">=0.8.0.dev0,<0.9.0.dev0",
                    replaced(
                        "verl.utils.megatron_utils:mapping_string_to_attn_backend",
                        make_settings,
                        "c903fbc5d6e0",
                    ),
                    # The settings have to pass through what is replaced, a name that this imports for
                    # itself, and then get the unknown one as an item: no lesser condition says that.
                    known(
                        "verl.workers.engine.megatron.transformer_impl:MegatronEngine._build_tf_config",
                        *("4b2bae0c2c97", "a628f23fcaea", "4730eb00cc3e", "0dc4b6326fa0", "c45ad53cb919"),
                    ),
                ),
                superseded(
                    "0.9",
                    ">=0.9.0.dev0",
                    Present(site="verl.utils.dynamic_cp_scheduler"),
                    reason="verl 0.9 runs Megatron's own scheduler, which no released megatron-core has",
                ),
                not_affected(
                    "0.7",
                    "<0.8.0.dev0",
                    Absent(site="verl.utils.megatron_utils:dynamic_cp_split_batch"),
                    reason="dynamic context parallelism came with verl 0.8",
                ),
            ),
        ),
    ),
)
