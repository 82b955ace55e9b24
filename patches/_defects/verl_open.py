"""What is known to be wrong in verl and that no patch fixes."""

from __future__ import annotations

from overlay.compat.projects import VERL
from overlay.defect import above, among, beyond, given, other, switched
from overlay.patches._defects._short_forms import all_of, by_harm, one_of

_MOONCAKE = "verl.checkpoint_engine.mooncake_checkpoint_engine:MooncakeCheckpointEngine"
_ACTOR = "verl.workers.actor.megatron_actor:MegatronPPOActor.forward_backward_batch"
_RANGE = "verl.trainer.distillation.losses:compute_distillation_loss_range"
_LOAD = "verl.trainer.ppo.ray_trainer:RayPPOTrainer._load_checkpoint"
_RETURNS = "verl.trainer.ppo.core_algos:compute_reinforce_plus_plus_outcome_advantage"
_HIJACK = "verl.utils.vllm.utils:VLLMHijack.hijack"
_MODULE = "verl.utils.megatron_utils:make_megatron_module"
_RESOLVE = "verl.workers.engine.megatron.transformer_impl:MegatronEngine._resolve_override_ddp_config"
_SFT = "verl.trainer.sft_trainer_ray:SFTTrainer.fit"
_V1 = "verl.trainer.ppo.v1.trainer_base:PPOTrainer"
_SAVE = "verl.utils.checkpoint.megatron_checkpoint_manager:MegatronCheckpointManager.save_checkpoint"
_WORKER = "verl.workers.rollout.vllm_rollout.utils:vLLMColocateWorkerExtension._update_weights"
_FP8 = "verl.utils.vllm.vllm_{}_utils:is_fp8_weight"
_SAMPLE = "verl.utils.dataset.multiturn_sft_dataset:MultiTurnSFTDataset.__getitem__"
_ALGOS = "verl.trainer.ppo.core_algos"
_ENTROPY = "verl.utils.kernel.kernels:efficient_entropy_triton_kernel_epilogue"

#: LoRA, and what decides whether verl merges it, beside the setting.
_LORA = one_of(above("lora_rank", 0), above("lora.rank", 0))
_LEGACY = among("trainer.use_legacy_worker_impl", "auto", "enable")
_STACKED_SINCE = beyond("vLLM is 0.25 or later")

_silent, _hang, _oom, _crash, _slow = by_harm(VERL)

DEFECTS = (
    _silent(
        id="verl.mooncake-mark-left",
        summary="Completion marks of a transfer are left over. The next one takes them for its own, "
        "and may overwrite a bucket that is still being read.",
        met="The checkpoint engine mooncake, from the second transfer on.",
        when=all_of(among("checkpoint_engine.backend", "mooncake")),
        sites=(f"{_MOONCAKE}.receive_weights",),
        fixed="0.9.1",
        shown="tests/real/test_verl_left.py::test_verl_0_9_0_leaves_marks_to_the_next_transfer",
    ),
    _silent(
        id="verl.rejected-tokens-counted",
        summary="Under rejection sampling, the critic's loss is divided by all tokens of the rollout, "
        "rejected ones included: the more are rejected, the smaller the gradient.",
        met="A critic under trainer.use_v1=True with algorithm.rollout_correction.rollout_rs, without "
        "bypass_mode, and loss_agg_mode=token-mean.",
        when=all_of(
            one_of(switched("critic.enable"), among("critic.enable", None)),
            one_of(switched("critic.enable"), among("algorithm.adv_estimator", "gae")),
            other("trainer.use_v1", False),
            other("rollout_correction.rollout_rs", None),
            among("rollout_correction.bypass_mode", False),
            beyond("the loss is a mean over tokens"),
        ),
        sites=(f"{_V1}._compute_advantage", "verl.workers.utils.losses:value_loss", _V1),
        shown="tests/real/test_advice.py::test_the_legacy_trainer_counts_no_rejected_token",
        way_out="trainer.use_v1=False, which verl has deprecated",
        tried="tests/real/test_advice.py::test_the_legacy_trainer_counts_no_rejected_token",
    ),
    _silent(
        id="verl.legacy-workers-weigh-by-samples",
        summary="The legacy workers weigh a micro-batch by its samples, and on Megatron all "
        "micro-batches alike. Under token-mean, a token in a short response counts for more.",
        met="The legacy workers: trainer.use_legacy_worker_impl other than disable.",
        when=all_of(other("trainer.use_legacy_worker_impl", "disable")),
        sites=(_ACTOR,),
        upstream=("verl-project/verl#6836",),
        fixed="0.8.0",
        shown="tests/real/test_advice.py::test_the_engine_weighs_each_token_alike",
        way_out="from 0.7 on trainer.use_legacy_worker_impl=disable, and fsdp_config.strategy=fsdp2 beside "
        "actor.strategy=fsdp2; but it refuses a critic that is not on fsdp, and one that is needs "
        "verl.critic-loss-scale",
        tried="tests/real/test_advice.py::test_the_engine_weighs_each_token_alike",
    ),
    _crash(
        id="verl.distillation-of-nothing",
        summary="Distillation of a micro-batch in which no token counts ends in RuntimeError.",
        met="distillation.enabled=True, and a micro-batch whose tokens are all masked.",
        when=all_of(switched("distillation.enabled"), beyond("a micro-batch has no token that counts")),
        sites=(_RANGE,),
        way_out="drop samples that are fully masked",
        tried="tests/real/test_advice.py::test_a_distillation_of_one_token_is_measured",
    ),
    _silent(
        id="verl.resume-repeats-order",
        summary="After a resume at the end of an epoch, the next epoch repeats the order of the first.",
        met="A resume of RL from a checkpoint of the last step of an epoch, with data.shuffle; in 0.9 with "
        "trainer.use_v1=False.",
        when=all_of(
            other("trainer.resume_mode", "disable"),
            switched("data.shuffle"),
            other("trainer.use_v1", True),
            beyond("it resumes from the last step of an epoch"),
        ),
        sites=(_LOAD,),
        upstream=("verl-project/verl#5725",),
        way_out="save within an epoch, not at its end",
        tried="tests/real/test_advice.py::test_a_job_that_was_saved_within_an_epoch_goes_on",
    ),
    _silent(
        id="verl.reward-on-observation-dropped",
        summary="REINFORCE++ drops a reward that stands on a token of an observation.",
        met="algorithm.adv_estimator=reinforce_plus_plus, and rollouts that end with an observation.",
        when=all_of(
            among("algorithm.adv_estimator", "reinforce_plus_plus"),
            beyond("a rollout ends with an observation, as in user simulations"),
        ),
        sites=(_RETURNS,),
        upstream=("verl-project/verl#7300",),
        way_out="let rollouts end with a turn of the policy",
        tried="tests/real/test_advice.py::test_a_reward_on_a_token_of_the_policy_is_credited",
    ),
    _crash(
        id="verl.sft-odd-batch",
        summary="SFT on Ray ends in an AssertionError if the ranks don't divide the batch size.",
        met="SFT on Ray with a data.train_batch_size that is no multiple of the data parallel size.",
        when=all_of(
            given("data.train_batch_size"), beyond("it is SFT on Ray, and the ranks do not divide the batch")
        ),
        sites=(_SFT,),
        shown="tests/real/test_sft_balance_ray.py::test_a_batch_that_the_ranks_do_not_divide_is_refused_by_verl",
        way_out="make the batch size a multiple of the rank count",
        tried="tests/real/test_sft_balance_ray.py::test_ranks_get_equal_work_and_the_batch_is_counted_whole",
    ),
    _silent(
        id="verl.lora-of-stacked-projections",
        summary="vLLM 0.25 and later take tensors of a LoRA adapter for others, because projections "
        "are stacked in another way. Only odd rollouts show it.",
        met="LoRA that is not merged, with vLLM 0.25 or later. The legacy workers of FSDP never merge it.",
        when=(
            *all_of(_LORA, among("lora.merge", False), _STACKED_SINCE),
            *all_of(_LORA, among("strategy", "fsdp", "fsdp2"), _LEGACY, _STACKED_SINCE),
        ),
        sites=(_HIJACK,),
        upstream=("verl-project/verl#7453",),
        fixed="0.9.1",
        way_out="use vLLM before 0.25; or lora.merge=True on Megatron from 0.7.1 on, and on FSDP from 0.9 "
        "on, or with verl.lora-merged-sync from 0.8 on (0.7.1: trainer.use_legacy_worker_impl=disable)",
    ),
    _silent(
        id="verl.rejected-move-other-baselines",
        summary="Rewards of responses that rejection sampling rejects whole still move the advantages of "
        "their group under grpo_passk, gpg and gdpo, which verl.rejected-in-groups leaves as they are.",
        met="algorithm.rollout_correction.rollout_rs with adv_estimator grpo_passk, gpg or gdpo.",
        when=all_of(
            other("rollout_correction.rollout_rs", None),
            among("algorithm.adv_estimator", "grpo_passk", "gpg", "gdpo"),
            beyond("a response is rejected whole"),
        ),
        sites=tuple(f"{_ALGOS}:compute_{name}_outcome_advantage" for name in ("gdpo", "gpg", "grpo_passk")),
        upstream=("verl-project/verl#6452",),
        shown="tests/real/test_verl_left.py::test_a_rejected_response_moves_the_others_of_its_group",
        way_out="another group estimator, with verl.rejected-in-groups",
    ),
    _silent(
        id="verl.bridge-gradients-in-bf16",
        summary="With Megatron-Bridge, gradients of a bfloat16 model are summed in bfloat16.",
        met="Megatron with vanilla_mbridge=False, and no grad_reduce_in_fp32 in override_ddp_config.",
        when=all_of(
            among("strategy", "megatron", "mindspeed*"),
            among("use_mbridge", True),
            among("vanilla_mbridge", False),
            beyond("override_ddp_config sets no grad_reduce_in_fp32"),
        ),
        sites=(_MODULE, _RESOLVE),
        upstream=("verl-project/verl#7485", "verl-project/verl#6526"),
        fixed="0.9.1",
        way_out="override_ddp_config.grad_reduce_in_fp32=True",
    ),
    _silent(
        id="verl.async-save-unfinished",
        summary="With async_save, the last checkpoint of SFT on Megatron is never finalised: it has no "
        "metadata, and a resume does not find it.",
        met="SFT on Megatron with checkpoint.async_save.",
        when=all_of(switched("async_save"), beyond("it is SFT on Megatron")),
        sites=(_SAVE,),
        upstream=("verl-project/verl#7363",),
        shown="tests/real/test_verl_left.py::test_the_last_checkpoint_of_sft_waits_for_somebody_to_finish_it",
        way_out="checkpoint.async_save=False",
    ),
    _silent(
        id="verl.fp8-experts-stale",
        summary="Fused weights of FP8 experts, whose names do not end in `weight`, are not quantised at a "
        "weight update.",
        met="rollout.quantization=fp8 with experts that arrive fused.",
        when=all_of(among("rollout.quantization", "fp8"), beyond("the weights of experts arrive fused")),
        sites=(_FP8.format("fp8"), _FP8.format("quant")),
        upstream=("verl-project/verl#7443",),
        fixed="0.9.1",
        way_out="roll out without FP8",
    ),
    _silent(
        id="verl.images-kept-over-updates",
        summary="After a weight update, an image that vLLM has seen before enters the rollout as the earlier "
        "weights encoded it. verl up to 0.7.0 asks for a vLLM that cannot clear what its encoder has made.",
        met="Multimodal models on vLLM whose vision encoder is trained.",
        when=all_of(
            among("rollout.name", "vllm"),
            beyond("the model has a vision encoder that is trained"),
        ),
        sites=("verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMHttpServer.clear_kv_cache",),
        upstream=("verl-project/verl#6522",),
        shown="read",
        way_out="freeze the vision encoder",
    ),
    _silent(
        id="verl.buffers-not-sent",
        summary="Buffers that training changes, such as e_score_correction_bias, keep their first values in "
        "vLLM.",
        met="FSDP with vLLM, and a model whose buffers change in training.",
        when=all_of(
            among("strategy", "fsdp", "fsdp2"),
            among("rollout.name", "vllm"),
            beyond("training changes a buffer of the model"),
        ),
        sites=(_WORKER, "verl.workers.rollout.vllm_rollout.vllm_rollout:vLLMAsyncRollout.update_weights"),
        upstream=("verl-project/verl#5801", "verl-project/verl#5688"),
        fixed="0.9.0",
        shown="tests/real/test_verl_left.py::test_buffers_keep_their_values_in_vllm_before_0_9",
        way_out="keep the model's buffers fixed in training",
    ),
    _silent(
        id="verl.sft-image-tokens-untold",
        summary="Multi-turn SFT drops mm_token_type_ids. A model that reads them, such as Gemma 4, takes "
        "image tokens for text, and attends to them causally.",
        met="Multi-turn SFT of a model that reads mm_token_type_ids.",
        when=all_of(
            beyond("it is SFT with images, of a model that reads mm_token_type_ids"),
        ),
        sites=(_SAMPLE,),
        upstream=("verl-project/verl#7457",),
        shown="tests/real/test_verl_left.py::test_multi_turn_sft_tells_no_model_which_tokens_are_of_images",
    ),
    _silent(
        id="verl.fused-entropy-underflow",
        summary="The fused kernel of log-probabilities and entropy takes no maximum below 0: where all "
        "logits of a token are below about -88, it takes the logarithm of 0.",
        met="use_fused_kernels with fused_kernel_options.impl_backend=triton.",
        when=all_of(
            switched("use_fused_kernels"),
            among("fused_kernel_options.impl_backend", "triton"),
            beyond("all logits of a token are far below 0"),
        ),
        sites=(_ENTROPY,),
        upstream=("verl-project/verl#7439",),
        way_out="fused_kernel_options.impl_backend=torch",
        tried="tests/real/test_advice.py::test_the_entropy_of_torch_does_not_underflow",
    ),
)
