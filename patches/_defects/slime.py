"""What is known to be wrong in slime and fixed by a patch."""

from __future__ import annotations

from overlay.compat.projects import SLIME
from overlay.defect import READ, above, among, before, beyond, given, other, switched
from overlay.patches._defects._short_forms import all_of, by_harm, one_of

_PPO = among("advantage_estimator", "ppo")
#: FSDP's trainer, up to 0.2.2, is other code.
_MEGATRON = among("train_backend", "megatron")
#: Of another generate function nobody can tell whether it has a budget of its own.
_OWN = among(
    "custom_generate_function_path", None, "slime.rollout.sglang_streaming_rollout.generate_streaming"
)
_CP = above("context_parallel_size", 1)
_TP = above("tensor_model_parallel_size", 1)
_WHITENED = switched("normalize_advantages")
_GROUPED = (
    among("advantage_estimator", "grpo", "gspo", "cispo", "reinforce_plus_plus_baseline"),
    among("disable_rewards_normalization", False),
    # slime calls it in place of its own, and SFT reads no reward.
    among("custom_reward_post_process_path", None),
    other("loss_type", "sft_loss"),
)
_STEP = "slime.backends.megatron_utils.model:train_one_step"
_PROVIDER = "slime.backends.megatron_utils.model_provider:get_model_provider_func"
_INNER = "slime.backends.megatron_utils.model_provider:_get_model_provider_func"
_BRIDGED = "slime.utils.megatron_bridge_utils"
_OTHER = "slime.backends.megatron_utils.actor:MegatronTrainRayActor.load_other_checkpoint"
_FULLY_ASYNC = "*fully_async_rollout*"
_RESUMED = beyond("the job resumes with its optimizer")
_MIXED = beyond("the data has prompts with images among others")
_GDN = beyond("the model is Qwen3-Next or Qwen3.5, with slime's own layer")
_GROUPED_EXPERTS = beyond("experts are grouped, and Transformer Engine is 2.13 or later")

_silent, _hang, _oom, _crash, _slow = by_harm(SLIME)

DEFECTS = (
    _silent(
        id="slime.allgather-cp-scrambled",
        summary="--allgather-cp is accepted for models whose layers then attend to the wrong tokens.",
        when=all_of(switched("allgather_cp"), _CP, beyond("the model has no sparse attention")),
        patch="slime.allgather-cp-models",
    ),
    _silent(
        id="slime.allgather-cp-replays-others",
        summary="With --allgather-cp, routing replay sends tokens to experts that were chosen for others.",
        when=all_of(switched("allgather_cp"), switched("use_rollout_routing_replay"), _CP),
        patch="slime.allgather-cp-replay",
    ),
    _silent(
        id="slime.async-groups-dropped",
        summary="Fully asynchronous rollouts discard finished groups, those of late prompts first.",
        when=all_of(among("rollout_function_path", _FULLY_ASYNC)),
        patch="slime.async-groups",
    ),
    _silent(
        id="slime.async-sample-filter-ignored",
        summary="Fully asynchronous rollouts accept --rollout-sample-filter-path and never call it.",
        when=all_of(among("rollout_function_path", _FULLY_ASYNC), given("rollout_sample_filter_path")),
        patch="slime.async-sample-filter",
    ),
    _oom(
        id="slime.bridge-recompute-lost",
        summary="In bridge mode, --recompute-granularity doesn't reach the model.",
        when=all_of(among("megatron_to_hf_mode", "bridge"), given("recompute_granularity")),
        patch="slime.bridge-flags",
    ),
    _silent(
        id="slime.bridge-per-token-loss-lost",
        summary="In bridge mode, --calculate-per-token-loss reaches the loss but not the model.",
        when=all_of(among("megatron_to_hf_mode", "bridge"), switched("calculate_per_token_loss")),
        patch="slime.bridge-flags",
    ),
    _silent(
        id="slime.bridge-context-parallel-lost",
        summary="In bridge mode, --context-parallel-size is lost: each rank attends only to its own tokens.",
        when=all_of(among("megatron_to_hf_mode", "bridge"), _CP),
        sites=(_PROVIDER, _INNER, _BRIDGED),
        fixed="0.2.4",
        patch="slime.bridge-flags",
    ),
    _oom(
        id="slime.budget-exceeded",
        summary="Micro-batches are balanced without regard to max_tokens_per_gpu, and some exceed it.",
        when=all_of(switched("use_dynamic_batch_size"), _MEGATRON),
        only=("0.1-0.2",),
        patch="slime.capped-partitions",
    ),
    _crash(
        id="slime.long-sample-refused",
        summary="A sample over max_tokens_per_gpu ends the job in AssertionError: This should never happen.",
        met="--use-dynamic-batch-size, and a sample longer than --max-tokens-per-gpu.",
        when=all_of(switched("use_dynamic_batch_size"), beyond("a sample is longer than max_tokens_per_gpu")),
        only=("286750aa3",),
        patch="slime.capped-partitions",
    ),
    _oom(
        id="slime.budget-exceeded-by-flops",
        summary="With --balance-by-flops micro-batches exceed max_tokens_per_gpu.",
        when=all_of(switched("use_dynamic_batch_size"), switched("balance_by_flops")),
        only=("0.3.1",),
        patch="slime.capped-partitions",
    ),
    _silent(
        id="slime.eval-defaults-dropped",
        summary="Settings of an evaluation are dropped: defaults without a rule, a data set's stop words.",
        when=(
            (given("eval_config"), beyond("it has defaults, or says when a response of a data set stops")),
            (given("eval_min_new_tokens"),),
        ),
        patch="slime.eval-settings",
    ),
    _silent(
        id="slime.first-weights-of-another-model",
        summary="The first rollouts after a resume come from the reference, or from the model loaded last.",
        met="A resume with a reference, a teacher on Megatron or --keep-old-actor, where training is not "
        "offloaded.",
        when=all_of(
            one_of(
                other("kl_coef", 0),
                switched("use_kl_loss"),
                among("opd_type", "megatron"),
                switched("keep_old_actor"),
            ),
            among("offload_train", False),
            beyond("the actor's weights are not those that were loaded last, as after a resume"),
        ),
        patch="slime.other-models",
    ),
    _silent(
        id="slime.model-of-another-step",
        met="--ref-ckpt-step or --opd-teacher-ckpt-step without --ckpt-step, and another model loaded after "
        "it.",
        summary="The teacher and the old actor are loaded from the step named for the reference.",
        when=(
            (
                other("ref_ckpt_step", None),
                among("ckpt_step", None),
                among("opd_type", "megatron"),
                among("opd_teacher_ckpt_step", None),
            ),
            (other("ref_ckpt_step", None), among("ckpt_step", None), switched("keep_old_actor")),
            (other("opd_teacher_ckpt_step", None), among("ckpt_step", None), switched("keep_old_actor")),
        ),
        sites=(_OTHER,),
        patch="slime.other-models",
    ),
    _silent(
        id="slime.eps-clip-c-ignored",
        summary="--eps-clip-c is parsed and never reaches the policy loss: dual clipping is off.",
        when=all_of(
            given("eps_clip_c"), among("train_backend", "megatron"), other("advantage_estimator", "cispo")
        ),
        patch="slime.eps-clip-c",
    ),
    _silent(
        id="slime.expert-shards-sent",
        summary="Of each grouped expert one tensor parallel rank's part is sent to SGLang as the whole: "
        "Transformer Engine no longer marks experts as split.",
        met="Expert tensor parallelism, grouped experts and Transformer Engine 2.13 or later, with Megatron "
        "before 0.19.",
        when=(
            (above("expert_tensor_parallel_size", 1), _GROUPED_EXPERTS),
            # Left out, it is the other one.
            (among("expert_tensor_parallel_size", None), _TP, _GROUPED_EXPERTS),
        ),
        sites=(
            "slime.backends.megatron_utils.update_weight.common:all_gather_params_async",
            "slime.backends.megatron_utils.update_weight_utils:all_gather_params_async",
        ),
        shown=READ,
        patch="megatron.grad-norm",
    ),
    _slow(
        id="slime.partitioner-slow",
        summary="The partitioner takes up to 20 seconds of each step, while the devices wait.",
        when=(
            (switched("balance_data"),),
            (switched("balance_by_flops"),),
            # From 0.3 on micro-batches are packed by first fit.
            (switched("use_dynamic_batch_size"), before("0.3")),
            (among("train_backend", "fsdp"),),
        ),
        patch="slime.fast-partitioner",
    ),
    _silent(
        id="slime.gradients-divided-twice",
        summary="With --fp16 gradients are divided by the scale of the loss twice, and clipping never clips.",
        when=(
            # Megatron leaves the check out itself where the scale of the loss is dynamic.
            (switched("fp16"), among("loss_scale", None), _MEGATRON),
            (given("loss_scale"), switched("no_check_for_nan_in_loss_and_grad"), _MEGATRON),
        ),
        patch="slime.grads-once",
    ),
    _crash(
        id="slime.grad-norm-unbound",
        summary="Skipping a step with an infinite gradient ends in UnboundLocalError.",
        met="--fp16, or --no-check-for-nan-in-loss-and-grad with --loss-scale, and gradients that overflow.",
        when=(
            # Megatron leaves the check out itself where the scale of the loss is dynamic.
            (switched("fp16"), among("loss_scale", None), beyond("a gradient overflows")),
            (
                given("loss_scale"),
                switched("no_check_for_nan_in_loss_and_grad"),
                beyond("a gradient overflows"),
            ),
        ),
        sites=(_STEP,),
        upstream=("THUDM/slime#1762",),
        fixed="0.3.0",
        patch="slime.grads-once",
    ),
    _silent(
        id="slime.group-baseline-lost",
        summary="Unless each prompt has n_samples_per_prompt samples, rewards are compared with the "
        "mean of the whole batch: a prompt that is always solved gets a positive advantage.",
        when=(
            (*_GROUPED, switched("use_dynamic_global_batch_size")),
            (*_GROUPED, beyond("samples are trimmed, or a rollout has several")),
        ),
        patch="slime.group-baseline",
    ),
    _crash(
        id="slime.group-timeout-lost",
        summary="After an offload, process groups have torch's timeout of 10 minutes and no NCCL options.",
        when=(
            (switched("offload_train"), other("distributed_timeout_minutes", 10)),
            (switched("offload_train"), given("nccl_communicator_config_path")),
        ),
        patch="slime.group-timeouts",
    ),
    _silent(
        id="slime.gdn-gradient-under-cp",
        summary="The gradient below Gated DeltaNet layers lacks what other ranks' tokens contribute.",
        when=all_of(_CP, _GDN),
        only=("0.2.4",),
        patch="slime.hf-attention-gradient",
    ),
    _silent(
        id="slime.gdn-gradient-under-tp",
        summary="Each Gated DeltaNet layer multiplies the gradient below it by the tensor parallel size.",
        when=all_of(_TP, switched("sequence_parallel"), _GDN),
        only=("0.2",),
        patch="slime.hf-attention-gradient",
    ),
    _oom(
        id="slime.loss-copies-logits",
        summary="Log-probabilities and entropy hold two to four times the logits at once.",
        when=all_of(among("loss_type", "policy_loss", "sft_loss"), among("train_backend", "megatron")),
        patch="slime.loss-memory",
    ),
    _silent(
        id="slime.gae-through-masked",
        summary="PPO's advantages run through the tokens of tools, whose values no loss has trained.",
        met="PPO with masked tokens in the responses, and lambda or gamma below 1 or a --kl-coef.",
        when=all_of(
            _PPO,
            # At 1 and 1 the values cancel, and the KL in the rewards does not.
            one_of(other("lambd", 1), other("gamma", 1), other("kl_coef", 0)),
            beyond("responses have masked tokens, of tools or observations"),
        ),
        patch="slime.masked-gae",
    ),
    _silent(
        id="slime.ppo-reward-misplaced",
        summary="Under context parallelism, PPO's reward goes to the last token of the first rank: "
        "the wrong token, or an IndexError if that rank has none of the response.",
        when=all_of(_PPO, _CP),
        patch="slime.masked-gae",
    ),
    _crash(
        id="slime.no-log-probs-of-rollout",
        summary="One step per rollout, without log-probabilities of its own, ends in TypeError.",
        when=all_of(
            among("loss_type", "policy_loss"),
            among("kl_coef", 0),
            other("advantage_estimator", "ppo"),  # whose values stand in for them
            beyond("the generate function brings no rollout_log_probs"),
        ),
        patch="slime.one-step-log-probs",
    ),
    _crash(
        id="slime.overlap-once",
        summary="With --overlap-grad-reduce the second rollout ends in AssertionError at "
        "config.no_sync_func, or in KeyError with --overlap-param-gather.",
        when=all_of(switched("overlap_grad_reduce")),
        patch="slime.overlap-again",
    ),
    _silent(
        id="slime.delta-net-leaks",
        summary="The state of a Gated DeltaNet layer leaks from each sample into that packed behind it.",
        when=all_of(beyond("the model is Qwen3-Next, and a micro-batch has several samples")),
        patch="slime.packed-delta-net",
    ),
    _slow(
        id="slime.memory-probed",
        summary="slime asks for free memory before each collective, ever more slowly with expandable "
        "segments.",
        when=all_of(among("train_backend", "megatron")),
        patch="slime.memory-probe",
    ),
    _silent(
        id="slime.partial-rollout-overlong",
        summary="A resumed response gets the whole token budget again, and may be far too long.",
        when=(
            (switched("partial_rollout"), _OWN),
            (among("rollout_function_path", _FULLY_ASYNC), _OWN, beyond("a weight update aborts responses")),
        ),
        patch="slime.partial-rollout-budget",
    ),
    _silent(
        id="slime.prompts-reordered",
        summary="Filtering long prompts puts those without images first, whatever the order of the data.",
        when=(
            (given("rollout_max_prompt_len"), _MIXED),
            (given("eval_max_prompt_len"), _MIXED),
            (before("0.2.2"), beyond("slime is 0.2.1, which limits every prompt"), _MIXED),
        ),
        patch="slime.prompt-order",
    ),
    _silent(
        id="slime.schedule-advanced-twice",
        summary="A resume advances the learning rate schedule a second time, past warm-up.",
        when=(
            *all_of(
                one_of(
                    other("lr_decay_style", "constant"),
                    above("lr_warmup_iters", 0),
                    above("lr_warmup_samples", 0),
                    above("lr_warmup_fraction", 0),
                    other("weight_decay_incr_style", "constant"),
                ),
                _RESUMED,
            ),
            # The critic's own, until slime 0.3.
            (_PPO, above("critic_lr_warmup_iters", 0), before("0.3"), _RESUMED),
        ),
        patch="slime.resumed-schedule",
    ),
    _silent(
        id="slime.qwen3-tool-results-split",
        summary="SFT with --loss-mask-type qwen3 gives each of several tool results a turn of its own.",
        when=all_of(
            among("loss_type", "sft_loss"),
            among("loss_mask_type", "qwen3"),
            beyond("results of tools follow each other in the data"),
        ),
        patch="slime.tool-turn-mask",
    ),
    _silent(
        id="slime.values-divided",
        summary="The critic's values are divided by --rollout-temperature.",
        when=all_of(_PPO, other("rollout_temperature", 1), _MEGATRON),
        patch="slime.value-temperature",
    ),
    _oom(
        id="slime.vpp-rounds-down",
        summary="With virtual pipeline stages, micro-batches exceed the budget: their number is too low.",
        when=all_of(
            switched("use_dynamic_batch_size"),
            one_of(
                given("num_layers_per_virtual_pipeline_stage"),
                above("num_virtual_stages_per_pipeline_rank", 1),
                given("pipeline_model_parallel_layout"),
            ),
        ),
        patch="slime.vpp-ceiling",
    ),
    _silent(
        id="slime.whitening-by-slice",
        summary="Each context parallel rank normalises advantages by the statistics of its own slices.",
        met="--normalize-advantages with a context parallel size above 1.",
        when=all_of(_WHITENED, _CP, _MEGATRON),
        patch="slime.whiten-over-cp",
        only=("0.2",),
    ),
    _hang(
        id="slime.whitening-waits",
        summary="A rank whose slices hold no response token skips a collective, and the others wait.",
        met="--normalize-advantages with context parallelism, where a rank has no response token.",
        when=all_of(_WHITENED, _CP, beyond("some rank has no token of a response")),
        patch="slime.whiten-over-cp",
        only=("0.2",),
    ),
    _silent(
        id="slime.whitening-cancels",
        summary="The variance of large advantages is lost in float32: they are off, or NaN, at which "
        "Megatron stops.",
        met="--normalize-advantages with advantages far from 0, whatever the context parallel size.",
        when=all_of(_WHITENED, beyond("advantages are far from 0, as with rewards in the hundreds")),
        patch="slime.whiten-over-cp",
    ),
)
