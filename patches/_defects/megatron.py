"""What is known to be wrong in Megatron-Core and mended by a patch."""

from overlay.compat.projects import MEGATRON
from overlay.defect import above, among, beyond, given, other, switched
from overlay.patches._defects._short_forms import NOT_SLIME, all_of, by_harm, one_of

_CP = above("context_parallel_size", 1)
_TP = above("tensor_model_parallel_size", 1)
_PER_TOKEN = switched("calculate_per_token_loss")
_PER_BATCH = among("calculate_per_token_loss", False)
_AUX = above("moe_aux_loss_coeff", 0)
_Z = above("moe_z_loss_coeff", 0)
_EXPERTS = given("num_experts")
_OVERLAPPED = among("no_overlap_p2p_communication", False)
_GROUPED = "megatron.core.extensions.transformer_engine:TEGroupedLinear.__init__"
_SINKS = "megatron.core.transformer.dot_product_attention:DotProductAttention.__init__"
#: It came with the sinks.
_SOFTMAX = "megatron.core.fusions.fused_softmax:SoftmaxOne"
_INTERLEAVED = "megatron.core.pipeline_parallel.schedules:forward_backward_pipelining_with_interleaving"
_SEQUENCE = "megatron.core.transformer.moe.router:TopKRouter._apply_seq_aux_loss"
_LINEAR = "megatron.core.extensions.transformer_engine:TELinear.__init__"

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
        when=all_of(switched("async_save"), among("use_persistent_ckpt_worker", False)),
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
        summary="The gradient norm, and so clipping, misses (TP-1)/TP of the gradients of grouped experts.",
        met="Grouped experts with tensor parallelism, on Transformer Engine 2.13 or later.",
        when=all_of(_TP, _EXPERTS, beyond("Transformer Engine is 2.13 or later")),
        sites=(_GROUPED,),
        fixed="0.19.0",
        patch="megatron.grad-norm",
    ),
    _silent(
        id="megatron.mla-norm-repeated",
        summary="The gradient norm, and so clipping, counts undivided projections of multi-latent "
        "attention TP times.",
        met="Multi-latent attention with tensor parallelism on Transformer Engine.",
        when=all_of(_TP, switched("multi_latent_attention")),
        sites=(_LINEAR,),
        fixed="0.17.0",
        patch="megatron.grad-norm",
    ),
    _silent(
        id="megatron.sink-norm-missing",
        summary="The gradient norm counts only the attention sinks of the first tensor parallel rank.",
        met="softmax_type=learnable with tensor parallelism.",
        when=all_of(_TP, among("softmax_type", "learnable")),
        sites=(_SINKS, _SOFTMAX),
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
            (_EXPERTS, _AUX, beyond("there are several data parallel ranks, and Megatron is before 0.14")),
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
        sites=(_SEQUENCE,),
        upstream=("NVIDIA/Megatron-LM#5798",),
        fixed="0.19.0",
        patch="megatron.moe-aux-scale",
        way_out="one sequence in a micro-batch",
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
            (given("num_virtual_stages_per_pipeline_rank"), _OVERLAPPED),
            (given("pipeline_model_parallel_layout"), _OVERLAPPED, beyond("it has virtual stages")),
            (given("virtual_pipeline_model_parallel_size"), switched("deallocate_pipeline_outputs")),
        ),
        sites=(_INTERLEAVED,),
        patch="megatron.vpp-send-before-free",
    ),
    _silent(
        id="megatron.mtp-mean-of-means",
        summary="Under context parallelism the multi-token prediction loss is a mean of ranks' means, "
        "so a token weighs more where its rank has few.",
        when=all_of(given("mtp_num_layers"), _CP),
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
                beyond("Megatron is before 0.14"),
            ),
        ),
        patch="megatron.mla-rotary-key-over-tp",
    ),
    _crash(
        id="megatron.mtp-no-token-nan",
        summary="If multi-token prediction has no token in a micro-batch, loss and gradients are NaN.",
        when=all_of(given("mtp_num_layers"), beyond("a micro-batch on a rank has no token to predict")),
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
        when=all_of(switched("log_max_attention_logit"), among("qk_clip", False)),
        patch="megatron.attention-logit-memory",
    ),
)
