"""What is known to be wrong in Megatron-Core and that no patch mends."""

from __future__ import annotations

from overlay.compat.projects import MEGATRON
from overlay.defect import above, among, beyond, given, switched
from overlay.patches._defects._short_forms import NOT_SLIME, all_of, by_harm, one_of

_CP = above("context_parallel_size", 1)
_TP = above("tensor_model_parallel_size", 1)
_AUX = above("moe_aux_loss_coeff", 0)
_SCHEDULES = "megatron.core.pipeline_parallel.schedules"
_STEP = f"{_SCHEDULES}:forward_step"
_SYNC = "megatron.core.distributed.param_and_grad_buffer:_ParamAndGradBucketGroup.start_grad_sync"
_DISTRIBUTED = "megatron.core.optimizer.distrib_optimizer:DistributedOptimizer"
_NAMES = f"{_DISTRIBUTED}._build_model_param_to_state_dict_param_map"
_LOAD = f"{_DISTRIBUTED}._set_main_param_and_optimizer_states"
_POST = "megatron.core.models.gpt.gpt_model:GPTModel._postprocess"
_MTP = "megatron.core.transformer.multi_token_prediction:process_mtp_loss"
_BLOCK = "megatron.core.transformer.multi_token_prediction:MultiTokenPredictionBlock.forward"
_COUNT = "megatron.core.transformer.moe.moe_utils:get_tokens_per_expert_and_token_count"
_BUCKET = "megatron.core.distributed.param_and_grad_buffer:_ParamAndGradBucket.__init__"
_GLOBAL = "megatron.core.transformer.moe.router:TopKRouter._apply_global_aux_loss"
_CROSS = "megatron.core.transformer.attention:CrossAttention.__init__"
#: It takes the groups of the model from 0.17 on.
_MTP_LAYER = "megatron.core.transformer.multi_token_prediction:MultiTokenPredictionLayer.__init__"
#: It reads the offsets from 0.14 on.
_READS_BUCKET = "megatron.core.distributed.param_and_grad_buffer:_ParamAndGradBucketGroup.finish_param_sync"
_RECOMPUTED = f"{_MTP.partition(':')[0]}:MultiTokenPredictionLayer._checkpointed_forward"
_SEQUENCE = "megatron.core.transformer.moe.router:TopKRouter._apply_seq_aux_loss"

_silent, _hang, _oom, _crash, _slow = by_harm(MEGATRON)

DEFECTS = (
    _silent(
        id="megatron.mtp-per-token-scale",
        summary="The multi-token prediction loss per token is divided by the tokens of the main loss, "
        "which has more.",
        met="mtp_num_layers with calculate_per_token_loss.",
        when=all_of(given("mtp_num_layers"), switched("calculate_per_token_loss")),
        sites=(_POST, _BLOCK, _MTP),
        upstream=("NVIDIA/Megatron-LM#3159",),
        fixed="0.17.0",
    ),
    _silent(
        id="megatron.instances-stream",
        summary="Gradients are reduced without waiting for the stream that computes them.",
        met="num_distributed_optimizer_instances above 1, overlap_grad_reduce, and another stream.",
        when=all_of(above("num_distributed_optimizer_instances", 1), switched("overlap_grad_reduce")),
        sites=(_SYNC,),
        upstream=("NVIDIA/Megatron-LM#3693",),
        fixed="0.17.0",
        way_out="leave overlap_grad_reduce off",
    ),
    _crash(
        id="megatron.main-params-by-substring",
        summary="Loading master weights ends in an AssertionError if a parameter's name is part of "
        "another's.",
        met="--load-main-params-from-ckpt, with a parameter whose name is part of another's.",
        when=all_of(switched("load_main_params_from_ckpt"), beyond("a name is part of another")),
        sites=(_NAMES,),
        upstream=("NVIDIA/Megatron-LM#3569",),
        fixed="0.17.0",
        way_out="leave --load-main-params-from-ckpt out",
    ),
    _silent(
        id="megatron.global-aux-loss-scale",
        summary="The gradient of global_aux_loss is too small by the number of data parallel ranks. "
        "With a padding mask and a loss per token it is not, and from 0.19 on it is too large "
        "by TP times CP. The log doesn't show it.",
        met="global_aux_loss with data parallelism, or with a padding mask.",
        when=all_of(
            _AUX,
            given("num_experts"),
            among("moe_router_load_balancing_type", "global_aux_loss"),
            beyond("there are several data parallel ranks, or a padding mask"),
        ),
        sites=(_GLOBAL,),
        upstream=("NVIDIA/Megatron-LM#3672", "NVIDIA/Megatron-LM#3769", "NVIDIA/Megatron-LM#7481"),
        shown="tests/real/test_megatron_ranks.py::test_what_upstream_and_the_patch_leave_of_global_aux_loss",
        way_out="multiply moe_aux_loss_coeff (in a list the entry of global_aux_loss alone) by the data "
        "parallel size, and pack sequences instead of padding them",
        tried="tests/real/test_advice.py::test_a_coefficient_of_all_ranks_is_right",
    ),
    _silent(
        id="megatron.padded-z-loss-report",
        summary="With a padding mask, the logged z-loss of a router is a mean of ranks' means, "
        "although ranks have different numbers of tokens. Before 0.19 it is the mean of one "
        "rank.",
        met="moe_z_loss_coeff with a padding mask, on several ranks.",
        when=all_of(
            above("moe_z_loss_coeff", 0),
            given("num_experts"),
            beyond("there is a padding mask, and there are several ranks"),
        ),
        sites=(_COUNT,),
        shown="tests/real/test_megatron_ranks.py::test_what_upstream_alone_weighs_wrongly_since_0_19",
        way_out="pack sequences instead of padding them; before 0.19 with megatron.moe-aux-scale",
    ),
    _silent(
        id="megatron.masked-loss-before-0-14",
        summary="A masked loss is divided by the tokens of a rank's own slices; a slice without "
        "tokens is NaN.",
        met="Context parallelism without calculate_per_token_loss, and a loss function that returns a number "
        "of tokens.",
        when=all_of(
            _CP,
            among("calculate_per_token_loss", False),
            NOT_SLIME,
            beyond("the loss function returns a sum, a number of tokens and a report"),
        ),
        sites=(_STEP,),
        upstream=("NVIDIA/Megatron-LM#7513", "NVIDIA/Megatron-LM#1764"),
        way_out="--calculate-per-token-loss; or move to 0.14, where megatron.masked-loss-cp mends it",
        tried="tests/real/test_advice.py::test_a_loss_per_token_is_right_in_0_13",
    ),
    _silent(
        id="megatron.cross-attention-group",
        summary="Cross attention with a tensor parallel group of its own builds its projections with "
        "the default group, so gradients are summed over the wrong ranks.",
        met="Cross attention with a tensor parallel group of its own (pg_collection).",
        when=all_of(_TP, beyond("the model has cross attention, and process groups of its own")),
        sites=(_CROSS,),
        upstream=("NVIDIA/Megatron-LM#7452", "NVIDIA/Megatron-LM#7190"),
        way_out="give the layer the groups of Megatron's state",
    ),
    _silent(
        id="megatron.mtp-recompute-group",
        summary="Recomputed in FP8, multi-token prediction splits saved activations over the default "
        "tensor parallel group instead of its own, and reassembles them from the wrong ranks.",
        met="mtp_num_layers in FP8, distribute_saved_activations and a pg_collection of its own.",
        when=all_of(
            _TP,
            given("mtp_num_layers"),
            switched("distribute_saved_activations"),
            beyond("the model has process groups of its own"),
        ),
        sites=(_RECOMPUTED, _MTP_LAYER),
        upstream=("NVIDIA/Megatron-LM#7452", "NVIDIA/Megatron-LM#6760"),
        way_out="leave distribute_saved_activations off",
    ),
    _crash(
        id="megatron.reshardable-without-fused-adam",
        summary="A fully reshardable checkpoint does not load into torch's own Adam: KeyError: 'step'.",
        met="A resume with dist_ckpt_optim_fully_reshardable (before 0.15 with optimizer states of the type "
        "fully_sharded_model_space), where neither Transformer Engine nor Apex is installed.",
        when=all_of(
            one_of(
                switched("dist_ckpt_optim_fully_reshardable"),
                beyond("Megatron is before 0.15, and the checkpoint is fully_sharded_model_space"),
            ),
            beyond("the job resumes, with neither Transformer Engine nor Apex"),
        ),
        sites=(_LOAD,),
        way_out="install Transformer Engine or Apex",
    ),
    _silent(
        id="megatron.mxfp8-offsets-unaligned",
        summary="MXFP8 weights are shifted behind a weight whose size is no multiple of 64.",
        met="reuse_grad_buf_for_mxfp8_param_ag, and parameters of sizes that are no multiples of 64.",
        when=all_of(
            switched("reuse_grad_buf_for_mxfp8_param_ag"),
            beyond("the size of a parameter is no multiple of 64"),
        ),
        sites=(_BUCKET, _READS_BUCKET),
        upstream=("NVIDIA/Megatron-LM#3007",),
        fixed="0.17.0",
        way_out="leave --reuse-grad-buf-for-mxfp8-param-ag and --fp8-param-gather out: without the first "
        "alone the job ends in NotImplementedError",
    ),
)
