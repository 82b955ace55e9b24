"""What is known to be wrong in Megatron-Core: first what a patch fixes, then what none does."""

from overlay.compat.projects import MEGATRON
from overlay.defect import above, among, before, beyond, given, other, switched
from overlay.patches._defects._short_forms import NOT_SLIME, all_of, by_harm, one_of

_CP = above("context_parallel_size", 1)
_TP = above("tensor_model_parallel_size", 1)
_PER_TOKEN = switched("calculate_per_token_loss")
_PER_BATCH = among("calculate_per_token_loss", False)
_AUX = above("moe_aux_loss_coeff", 0)
_Z = above("moe_z_loss_coeff", 0)
_EXPERTS = above("num_experts", 0)
_PREDICTED = above("mtp_num_layers", 0)
_OFFLOADED = switched("optimizer_cpu_offload")
_WEIGHTS_ALONE = beyond("weights are loaded after the optimizer was made, without its states")
_WITHOUT_FUSED_ADAM = beyond("the job resumes, with neither Transformer Engine nor Apex")
_OVERLAPPED = among("no_overlap_p2p_communication", False)
_MTP = "megatron.core.transformer.multi_token_prediction"
_DISTRIBUTED = "megatron.core.optimizer.distrib_optimizer:DistributedOptimizer"

_silent, _hang, _oom, _crash, _slow = by_harm(MEGATRON)

DEFECTS = (
    _silent(
        id="megatron.ranks-differ",
        summary="Ranks with different patches or sources train together, because upstream compares nothing.",
        when=all_of(beyond("the environments of the ranks differ")),
        patch="megatron.agreement",
    ),
    _silent(
        id="megatron.async-save-unpinned",
        summary="An asynchronous checkpoint is written from pinned memory that the trainer may reuse "
        "meanwhile. It is corrupt, which shows when it is loaded.",
        when=all_of(switched("async_save"), among("use_persistent_ckpt_worker", False, None)),
        patch="megatron.async-checkpoint-pin",
    ),
    _crash(
        id="megatron.cp-comm-type-shifted",
        summary="Each layer gets the next one's communication type, and the last ends in an IndexError.",
        when=all_of(given("cp_comm_type"), _CP, beyond("cp_comm_type is a list with a type for each layer")),
        patch="megatron.cp-comm-type-by-layer",
    ),
    _crash(
        id="megatron.no-dynamic-cp",
        summary="This release lacks names that verl's dynamic context parallelism uses: "
        "AssertionError, or wrong rotary positions with fused kernels.",
        when=all_of(switched("dynamic_context_parallel")),
        patch="megatron.dynamic-cp-names",
    ),
    _silent(
        id="megatron.expert-norm-missing",
        summary="The gradient norm, and so clipping, misses (TP-1)/TP of the gradients of grouped experts, "
        "or of other experts' biases.",
        met="Tensor parallelism with grouped experts on Transformer Engine 2.13 or later, or with biases.",
        when=all_of(_TP, _EXPERTS, beyond("Transformer Engine is 2.13 or later, or experts have biases")),
        sites=("megatron.core.extensions.transformer_engine:TEGroupedLinear.__init__",),
        fixed="0.19.0",
        patch="megatron.grad-norm",
    ),
    _silent(
        id="megatron.mla-norm-repeated",
        summary="The gradient norm, and so clipping, counts replicated projections of multi-latent "
        "attention TP times.",
        met="Multi-latent attention with tensor parallelism on Transformer Engine.",
        when=all_of(_TP, switched("multi_latent_attention")),
        sites=("megatron.core.extensions.transformer_engine:TELinear.__init__",),
        fixed="0.17.0",
        patch="megatron.grad-norm",
    ),
    _silent(
        id="megatron.sink-norm-missing",
        summary="The gradient norm counts only the attention sinks of the first tensor parallel rank.",
        met="softmax_type=learnable with tensor parallelism.",
        when=all_of(_TP, among("softmax_type", "learnable")),
        # The second came with the sinks.
        sites=(
            "megatron.core.transformer.dot_product_attention:DotProductAttention.__init__",
            "megatron.core.fusions.fused_softmax:SoftmaxOne",
        ),
        patch="megatron.grad-norm",
    ),
    _silent(
        id="megatron.label-smoothing-local",
        summary="Labels are smoothed over a rank's part of the vocabulary, so the gradient is that of "
        "no rank's loss.",
        when=all_of(_TP, beyond("the loss is called with label_smoothing")),
        patch="megatron.label-smoothing-over-tp",
    ),
    _silent(
        id="megatron.masked-loss-mean-of-means",
        summary="A masked loss is divided by the tokens of a rank's own slices, so a token weighs "
        "more where its rank has few. In 0.14, a slice without tokens is NaN.",
        when=all_of(
            _CP,
            _PER_BATCH,
            NOT_SLIME,
            beyond("the loss function returns a sum, a number of tokens and a report"),
        ),
        patch="megatron.masked-loss-cp",
    ),
    _silent(
        id="megatron.aux-loss-per-token-scale",
        summary="With a loss per token, the gradient of a router's auxiliary losses is too small by "
        "the tensor times the context parallel size. The log doesn't show it.",
        when=all_of(_PER_TOKEN, _EXPERTS, one_of(_AUX, _Z), one_of(_TP, _CP)),
        only=("0.12", "0.14", "before 0.16", "0.16", "0.18"),
        fixed="0.19.0",
        patch="megatron.moe-aux-scale",
    ),
    _silent(
        id="megatron.masked-tokens-overcounted",
        summary="With a padding mask, a rank's number of tokens is overwritten with that of all "
        "ranks. The gradient of auxiliary losses is too large by the tensor times the context "
        "parallel size.",
        met="aux_loss or seq_aux_loss with a padding mask, calculate_per_token_loss and tensor or context "
        "parallelism.",
        when=all_of(_PER_TOKEN, _EXPERTS, _AUX, one_of(_TP, _CP), beyond("there is a padding mask")),
        # Before, a factor that is missing makes up for it.
        only=("0.19",),
        upstream=("NVIDIA/Megatron-LM#7481", "NVIDIA/Megatron-LM#7452"),
        patch="megatron.moe-aux-scale",
    ),
    _silent(
        id="megatron.aux-loss-report-of-one-rank",
        summary="The logged z-loss of a router is the mean over one rank's tokens. Before 0.14 all "
        "logged auxiliary losses are those of one data parallel rank.",
        met="moe_z_loss_coeff on several ranks (in 0.14 and 0.15 with tensor, in 0.18 with tensor or context "
        "parallelism); before 0.14 moe_aux_loss_coeff with data parallelism.",
        when=(
            (_EXPERTS, _Z, beyond("there are several ranks")),
            (_EXPERTS, _AUX, before("0.14"), beyond("there are several data parallel ranks")),
        ),
        only=("0.12", "0.14", "before 0.16", "0.16", "0.18"),
        fixed="0.19.0",
        patch="megatron.moe-aux-scale",
    ),
    _silent(
        id="megatron.aux-loss-cp-scale",
        summary="Without a loss per token, the gradient of a router's auxiliary losses is too small "
        "by the context parallel size. The log doesn't show it.",
        when=all_of(_PER_BATCH, _EXPERTS, one_of(_AUX, _Z), _CP),
        only=("0.12", "0.14"),
        fixed="0.16.0",
        patch="megatron.moe-aux-scale",
    ),
    _silent(
        id="megatron.seq-aux-loss-micro-batch-scale",
        summary="With a loss per token, the gradient of seq_aux_loss is too small by the number of "
        "sequences in a micro-batch. The log doesn't show it.",
        met="seq_aux_loss with calculate_per_token_loss and several sequences in a micro-batch, in 0.16 to "
        "0.18 and on the dev branch.",
        when=all_of(
            _EXPERTS,
            among("moe_router_load_balancing_type", "seq_aux_loss"),
            _AUX,
            _PER_TOKEN,
            above("micro_batch_size", 1),
        ),
        sites=("megatron.core.transformer.moe.router:TopKRouter._apply_seq_aux_loss",),
        upstream=("NVIDIA/Megatron-LM#5798",),
        fixed="0.19.0",
        patch="megatron.moe-aux-scale",
        way_out="one sequence in a micro-batch",
        tried="tests/real/test_advice_megatron.py::test_one_sequence_in_a_micro_batch_weighs_as_much_as_it_should",
    ),
    _oom(
        id="megatron.recompute-holds-inputs",
        summary="Recomputed MoE layers keep their input and its gradient after the backward, so "
        "memory grows with the number of layers.",
        met="Recomputation of MoE layers: recompute_granularity=full, or selective with moe among "
        "recompute_modules.",
        when=(
            (among("recompute_granularity", "full"), _EXPERTS),
            (among("recompute_granularity", "selective"), _EXPERTS, beyond("recompute_modules has moe")),
            (switched("moe_layer_recompute"), _EXPERTS),
        ),
        patch="megatron.recompute",
    ),
    _silent(
        id="megatron.reduce-not-returned",
        summary="A sum over tensor parallel ranks is lost if the tensor is not contiguous.",
        when=all_of(_TP, beyond("a module of your own hands in a transposed, sliced or expanded tensor")),
        patch="megatron.reduce-contiguous",
    ),
    _silent(
        id="megatron.reshardable-shifted",
        summary="From the second bucket on, fully reshardable checkpoints store each parameter's "
        "optimizer state shifted into the next. It shows when the job resumes.",
        when=all_of(
            switched("dist_ckpt_optim_fully_reshardable"),
            switched("overlap_grad_reduce"),
            beyond("buckets are padded, as with a data parallel size that is no power of two"),
        ),
        patch="megatron.reshardable-checkpoint",
    ),
    _silent(
        id="megatron.resumed-decay-late",
        summary="The first step after a resume uses the weight decay of the new schedule, not the "
        "checkpoint's.",
        when=all_of(
            switched("use_checkpoint_opt_param_scheduler"),
            beyond("the job resumes with another weight decay than it was saved with"),
        ),
        patch="megatron.resumed-weight-decay",
    ),
    _silent(
        id="megatron.sigmoid-scores-coarse",
        summary="The balancing loss of a sigmoid router uses bfloat16 scores, in which experts tie.",
        when=all_of(
            _EXPERTS,
            among("moe_router_score_function", "sigmoid"),
            other("moe_router_load_balancing_type", "none"),
            _AUX,
            among("moe_router_dtype", None),
        ),
        patch="megatron.sigmoid-aux-scores",
    ),
    _silent(
        id="megatron.sent-while-freed",
        summary="The interleaved schedule frees an activation that is still being sent to the next stage.",
        when=(
            (given("num_layers_per_virtual_pipeline_stage"), _OVERLAPPED),
            (above("num_virtual_stages_per_pipeline_rank", 1), _OVERLAPPED),
            (given("pipeline_model_parallel_layout"), _OVERLAPPED, beyond("it has virtual stages")),
            (given("virtual_pipeline_model_parallel_size"), switched("deallocate_pipeline_outputs")),
        ),
        sites=("megatron.core.pipeline_parallel.schedules:forward_backward_pipelining_with_interleaving",),
        patch="megatron.vpp-send-before-free",
    ),
    _silent(
        id="megatron.mtp-mean-of-means",
        summary="Under context parallelism the multi-token prediction loss is a mean of ranks' means, "
        "so a token weighs more where its rank has few.",
        when=all_of(_PREDICTED, _CP),
        patch="megatron.mtp-loss-scale",
    ),
    _silent(
        id="megatron.param-groups-collide",
        summary="When a checkpoint is loaded, parameter groups that differ only in learning rates or "
        "weight decay overwrite each other. Some optimizers don't load.",
        when=all_of(
            beyond("the job resumes, and parameter groups differ in max_lr, min_lr, start_wd or end_wd alone")
        ),
        patch="megatron.param-groups-by-lr",
    ),
    _silent(
        id="megatron.offloaded-weights-stale",
        summary="An optimizer that is offloaded to the CPU doesn't see weights that are loaded without its "
        "states, and the first step puts back those that the job began with.",
        when=(
            (_OFFLOADED, among("use_precision_aware_optimizer", False), _WEIGHTS_ALONE),
            (_OFFLOADED, _WEIGHTS_ALONE, before("0.13")),
        ),
        patch="megatron.offloaded-weights",
    ),
    _silent(
        id="megatron.offloaded-step-lost",
        summary="An optimizer that is offloaded to the CPU counts Adam's steps from 1 after a resume, or "
        "takes the weights that the job began with. Its bias correction or its weights are wrong from then "
        "on.",
        when=all_of(
            _OFFLOADED,
            among("dist_ckpt_optim_fully_reshardable", False),
            beyond(
                "the job resumes from a checkpoint in the format dp_reshardable or dp_zero_gather_scatter"
            ),
        ),
        patch="megatron.offloaded-resume",
    ),
    _crash(
        id="megatron.offloaded-resume-fails",
        summary="A job whose optimizer is offloaded to the CPU doesn't resume: Weights only load failed, or "
        "KeyError.",
        when=(
            (_OFFLOADED, among("use_precision_aware_optimizer", False), beyond("the job resumes")),
            (
                _OFFLOADED,
                beyond("the job resumes with Megatron from 0.14 to 0.18"),
                beyond("the checkpoint is fully_reshardable or fully_sharded_model_space, as slime's are"),
            ),
        ),
        patch="megatron.offloaded-resume",
    ),
    _crash(
        id="megatron.offloaded-lists-of-one-rank",
        summary="A job whose optimizer is offloaded to the CPU doesn't resume: Cannot merge two lists with "
        "different lengths.",
        when=all_of(
            _OFFLOADED,
            among("dist_ckpt_optim_fully_reshardable", False),
            beyond("the job resumes from a checkpoint that slime 0.2.2 to 0.2.4 has saved on several ranks"),
        ),
        patch="megatron.offloaded-common-state",
    ),
    _silent(
        id="megatron.indexer-loss-scale",
        summary="The gradient of the indexer's loss in DeepSeek sparse attention is too large by the number "
        "of micro-batches, unless losses are per token. In float16 it lacks the loss scale.",
        when=all_of(
            among("experimental_attention_variant", "dsa"),
            beyond("a step has several micro-batches, or a loss scale"),
        ),
        patch="megatron.dsa-indexer-scale",
    ),
    _crash(
        id="megatron.gate-of-all-heads",
        summary="Gated attention ends in a RuntimeError if there are more tensor parallel ranks than groups "
        "of queries.",
        when=all_of(
            _TP,
            switched("attention_output_gate"),
            beyond("tensor_model_parallel_size is greater than num_query_groups"),
        ),
        patch="megatron.gate-of-own-heads",
    ),
    _crash(
        id="megatron.gdn-unexpected-comm-type",
        summary="A gated delta net is not built under context parallelism: unexpected keyword argument "
        "'cp_comm_type'.",
        when=all_of(_CP, beyond("the model has Megatron's Gated DeltaNet")),
        patch="megatron.gdn-cp-comm-type",
    ),
    _hang(
        id="megatron.moe-report-of-other-length",
        summary="With multi-token prediction, a pipeline stage without experts adds fewer auxiliary losses "
        "than the others, and the report hangs.",
        when=all_of(
            _EXPERTS,
            _PREDICTED,
            above("pipeline_model_parallel_size", 1),
            beyond("a pipeline stage has no experts"),
        ),
        patch="megatron.moe-tracker-with-mtp",
    ),
    _silent(
        id="megatron.muon-without-gates",
        summary="Muon cuts the weight of gated attention at the wrong rows, and orthogonalizes mixtures of "
        "queries, gates, keys and values, or ends in a RuntimeError.",
        when=all_of(switched("attention_output_gate"), beyond("the optimizer is Muon, with muon_split_qkv")),
        patch="megatron.muon-gated-qkv",
    ),
    _silent(
        id="megatron.global-aux-counts",
        summary="global_aux_loss divides the experts' counts of all micro-batches by the tokens of one. "
        "Where micro-batches differ in size, the loss and its gradient are off by the ratio.",
        when=all_of(
            _EXPERTS,
            among("moe_router_load_balancing_type", "global_aux_loss"),
            _AUX,
            beyond("micro-batches have different numbers of tokens"),
        ),
        patch="megatron.global-aux-tokens",
    ),
    _silent(
        id="megatron.gdn-norm-gradient",
        summary="Without sequence parallelism, each tensor parallel rank trains the last norm of a "
        "Gated DeltaNet on its own heads only, and the copies drift apart.",
        when=all_of(
            _TP, among("sequence_parallel", False), beyond("the model has Megatron's Gated DeltaNet")
        ),
        patch="megatron.gated-norm-over-tp",
    ),
    _silent(
        id="megatron.mla-rotary-key-gradient",
        summary="The rotary key that all heads of multi-latent attention share gets the gradient of "
        "one rank's heads, so the down projection and all earlier layers get too little.",
        when=all_of(
            _TP,
            switched("multi_latent_attention"),
            one_of(
                among("sequence_parallel", False),
                beyond("mla_down_proj_fusion is set"),
                before("0.14"),
            ),
        ),
        patch="megatron.mla-rotary-key-over-tp",
    ),
    _crash(
        id="megatron.mtp-no-token-nan",
        summary="If multi-token prediction has no token in a micro-batch, loss and gradients are NaN.",
        when=all_of(_PREDICTED, beyond("a micro-batch on a rank has no token to predict")),
        patch="megatron.mtp-without-tokens",
    ),
    _crash(
        id="megatron.uniform-recompute-index",
        summary="Uniform recomputation ends in an IndexError if the last chunk has fewer layers.",
        when=all_of(
            among("recompute_granularity", "full"),
            among("recompute_method", "uniform"),
            beyond("the layers of a stage cannot be divided by recompute_num_layers"),
        ),
        patch="megatron.uniform-recompute",
    ),
    _oom(
        id="megatron.attention-logit-kept",
        summary="The largest attention logit is never reset, and keeps the graph of each step in memory.",
        when=(
            (switched("log_max_attention_logit"), among("qk_clip", False, None)),
            (switched("qk_clip"), above("mtp_num_layers", 0)),
        ),
        patch="megatron.attention-logit-memory",
    ),
    _silent(
        id="megatron.mtp-per-token-scale",
        summary="The multi-token prediction loss per token is divided by the tokens of the main loss, "
        "which has more.",
        met="mtp_num_layers with calculate_per_token_loss.",
        when=all_of(_PREDICTED, _PER_TOKEN),
        sites=(
            "megatron.core.models.gpt.gpt_model:GPTModel._postprocess",
            f"{_MTP}:MultiTokenPredictionBlock.forward",
            f"{_MTP}:process_mtp_loss",
        ),
        upstream=("NVIDIA/Megatron-LM#3159",),
        fixed="0.17.0",
    ),
    _silent(
        id="megatron.instances-stream",
        summary="Gradients are reduced without waiting for the stream that computes them.",
        met="num_distributed_optimizer_instances above 1, overlap_grad_reduce, and another stream.",
        when=all_of(above("num_distributed_optimizer_instances", 1), switched("overlap_grad_reduce")),
        sites=("megatron.core.distributed.param_and_grad_buffer:_ParamAndGradBucketGroup.start_grad_sync",),
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
        sites=(f"{_DISTRIBUTED}._build_model_param_to_state_dict_param_map",),
        upstream=("NVIDIA/Megatron-LM#3569",),
        fixed="0.17.0",
        shown="tests/real/test_advice_megatron.py::test_masters_that_are_not_loaded_begin_with_the_weights",
        way_out="leave out --load-main-params-from-ckpt: master weights are then as precise as the model's",
        tried="tests/real/test_advice_megatron.py::test_masters_that_are_not_loaded_begin_with_the_weights",
    ),
    _silent(
        id="megatron.global-aux-loss-scale",
        summary="The gradient of global_aux_loss is too small by DP, and with a loss per token before "
        "0.19 by TP times CP as well. With a padding mask and a loss per token it is not, and from 0.19 "
        "on it is too large by TP times CP. The log doesn't show it.",
        met="global_aux_loss with data parallelism, or with a padding mask.",
        when=all_of(
            _AUX,
            _EXPERTS,
            among("moe_router_load_balancing_type", "global_aux_loss"),
            beyond("there are several data parallel ranks, or a padding mask"),
        ),
        sites=("megatron.core.transformer.moe.router:TopKRouter._apply_global_aux_loss",),
        upstream=("NVIDIA/Megatron-LM#3672", "NVIDIA/Megatron-LM#3769", "NVIDIA/Megatron-LM#7481"),
        shown="tests/real/test_megatron_ranks.py::test_what_upstream_and_the_patch_leave_of_global_aux_loss",
        way_out="multiply moe_aux_loss_coeff (in a list, only that of global_aux_loss) by the data "
        "parallel size, and give ranks equally many tokens, without padding; with calculate_per_token_loss "
        "before 0.19, select megatron.moe-aux-scale too",
        tried="tests/real/test_advice_megatron.py::test_a_coefficient_of_all_ranks_is_right",
    ),
    _silent(
        id="megatron.padded-z-loss-report",
        summary="With a padding mask, the logged z-loss of a router is a mean of ranks' means, "
        "although ranks have different numbers of tokens. Before 0.19 it is the mean of one "
        "rank.",
        met="moe_z_loss_coeff with a padding mask, on several ranks.",
        when=all_of(
            _Z,
            _EXPERTS,
            beyond("there is a padding mask, and there are several ranks"),
        ),
        sites=("megatron.core.transformer.moe.moe_utils:get_tokens_per_expert_and_token_count",),
        shown="tests/real/test_megatron_ranks.py::test_what_upstream_alone_weighs_wrongly_since_0_19",
        way_out="pack sequences instead of padding them; before 0.19 also select megatron.moe-aux-scale",
        tried="tests/real/test_advice_megatron.py::test_packed_sequences_report_the_z_loss_of_all",
    ),
    _silent(
        id="megatron.masked-loss-before-0-14",
        summary="A masked loss is divided by the tokens of a rank's own slices; a slice without "
        "tokens is NaN.",
        met="Context parallelism without calculate_per_token_loss, and a loss function that returns a number "
        "of tokens.",
        when=all_of(
            _CP,
            _PER_BATCH,
            NOT_SLIME,
            beyond("the loss function returns a sum, a number of tokens and a report"),
        ),
        sites=("megatron.core.pipeline_parallel.schedules:forward_step",),
        upstream=("NVIDIA/Megatron-LM#7513", "NVIDIA/Megatron-LM#1764"),
        way_out="--calculate-per-token-loss; or move to 0.14, where megatron.masked-loss-cp fixes it",
        tried="tests/real/test_advice_megatron.py::test_a_loss_per_token_is_right_in_0_13",
    ),
    _silent(
        id="megatron.cross-attention-group",
        summary="Cross attention with a tensor parallel group of its own builds its projections with "
        "the default group, so gradients are summed over the wrong ranks.",
        met="Cross attention with a tensor parallel group of its own (pg_collection).",
        when=all_of(_TP, beyond("the model has cross attention, and process groups of its own")),
        sites=("megatron.core.transformer.attention:CrossAttention.__init__",),
        upstream=("NVIDIA/Megatron-LM#7452", "NVIDIA/Megatron-LM#7190"),
        shown="tests/real/test_advice_megatron.py::test_cross_attention_with_the_groups_of_the_state_is_right",
        way_out="give the layer Megatron's default groups",
        tried="tests/real/test_advice_megatron.py::test_cross_attention_with_the_groups_of_the_state_is_right",
    ),
    _silent(
        id="megatron.mtp-recompute-group",
        summary="Recomputed in FP8, multi-token prediction splits saved activations over the default "
        "tensor parallel group instead of its own, and reassembles them from the wrong ranks.",
        met="mtp_num_layers in FP8, distribute_saved_activations and a pg_collection of its own.",
        when=all_of(
            _TP,
            _PREDICTED,
            switched("distribute_saved_activations"),
            beyond("the model has process groups of its own"),
        ),
        # The second takes the groups of the model from 0.17 on.
        sites=(
            f"{_MTP}:MultiTokenPredictionLayer._checkpointed_forward",
            f"{_MTP}:MultiTokenPredictionLayer.__init__",
        ),
        upstream=("NVIDIA/Megatron-LM#7452", "NVIDIA/Megatron-LM#6760"),
        way_out="leave distribute_saved_activations off",
    ),
    _crash(
        id="megatron.reshardable-without-fused-adam",
        summary="A fully reshardable checkpoint does not load into torch's own Adam: KeyError: 'step'.",
        met="A resume with dist_ckpt_optim_fully_reshardable (before 0.15 with optimizer states of the type "
        "fully_sharded_model_space), where neither Transformer Engine nor Apex is installed.",
        when=(
            (switched("dist_ckpt_optim_fully_reshardable"), _WITHOUT_FUSED_ADAM),
            (before("0.15"), beyond("the checkpoint is fully_sharded_model_space"), _WITHOUT_FUSED_ADAM),
        ),
        sites=(f"{_DISTRIBUTED}._set_main_param_and_optimizer_states",),
        way_out="install Transformer Engine or Apex",
    ),
    _silent(
        id="megatron.packed-sequence-balance",
        summary="seq_aux_loss takes packed sequences for one, so it balances the pack and not each sequence.",
        met="seq_aux_loss with packed sequences.",
        when=all_of(
            _EXPERTS,
            among("moe_router_load_balancing_type", "seq_aux_loss"),
            _AUX,
            beyond("sequences are packed"),
        ),
        sites=("megatron.core.transformer.moe.router:TopKRouter.routing",),
        upstream=("NVIDIA/Megatron-LM#6115",),
        shown="tests/real/test_advice_megatron.py::test_aux_loss_balances_the_same_packed_or_not",
        way_out="moe_router_load_balancing_type=aux_loss, which balances all tokens of a micro-batch",
        tried="tests/real/test_advice_megatron.py::test_aux_loss_balances_the_same_packed_or_not",
    ),
    _silent(
        id="megatron.fp32-residual-rounded",
        summary="With fp32_residual_connection each layer rounds the residual to the type of its output, so "
        "it is no more exact than without.",
        met="fp32_residual_connection in bfloat16 or float16.",
        when=all_of(switched("fp32_residual_connection")),
        sites=("megatron.core.fusions.fused_bias_dropout:_bias_dropout_add_func",),
        upstream=("NVIDIA/Megatron-LM#3504",),
        fixed="0.17.0",
        shown="tests/real/test_megatron_left.py::test_a_residual_in_float32_is_rounded_before_0_17",
    ),
    _hang(
        id="megatron.mtp-cp-world-group",
        summary="Under context parallelism multi-token prediction sends between ranks on the group of all "
        "ranks, where it may wait for other messages: a deadlock.",
        met="mtp_num_layers with context parallelism.",
        when=all_of(_PREDICTED, _CP),
        sites=(f"{_MTP}:roll_tensor",),
        upstream=("NVIDIA/Megatron-LM#6746",),
        shown="tests/real/test_megatron_left.py::test_the_tokens_to_predict_further_are_sent_among_other_messages",
    ),
    _crash(
        id="megatron.offloaded-float32",
        summary="An optimizer that is offloaded to the CPU refuses weights in float32 at the start: "
        "ValueError: can't optimize a non-leaf Tensor.",
        met="optimizer_cpu_offload with the distributed optimizer, and a weight in float32.",
        when=all_of(_OFFLOADED, beyond("a weight of the model is in float32")),
        sites=(
            f"{_DISTRIBUTED}._build_model_and_main_param_groups",
            "megatron.core.optimizer.cpu_offloading.hybrid_optimizer:HybridDeviceOptimizer.__init__",
        ),
        shown="tests/real/test_advice_megatron.py::test_an_offloaded_optimizer_steps_weights_in_bfloat16",
        way_out="keep no weights in float32",
        tried="tests/real/test_advice_megatron.py::test_an_offloaded_optimizer_steps_weights_in_bfloat16",
    ),
)
