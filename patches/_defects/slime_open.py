"""What is known to be wrong in slime and that no patch fixes."""

from __future__ import annotations

from overlay.compat.projects import SLIME
from overlay.defect import above, among, beyond, given, other, switched
from overlay.patches._defects._short_forms import all_of, by_harm, one_of

_FSDP = "slime.backends.fsdp_utils.actor:FSDPTrainRayActor._train_step"
_QWEN = "slime.utils.mask_utils:MultiTurnLossMaskGenerator.gen_multi_turn_loss_mask_qwen"
_ASYNC = "slime.rollout.fully_async_rollout:_generate_rollout_async"
_ADVANTAGES = "slime.backends.megatron_utils.loss:compute_advantages_and_returns"
_TRAIN = "slime.backends.megatron_utils.model:train"
_REWARD = "slime.rollout.on_policy_distillation:reward_func"
_LOG = "slime.backends.megatron_utils.data:log_rollout_data"
_RETURNS = "slime.utils.ppo_utils:get_reinforce_plus_plus_returns"

_silent, _hang, _oom, _crash, _slow = by_harm(SLIME)

DEFECTS = (
    _silent(
        id="slime.async-hooks-ignored",
        summary="Fully asynchronous rollouts call neither the filter of dynamic sampling nor the function "
        "for all samples.",
        met="--dynamic-sampling-filter-path or --rollout-all-samples-process-path with a fully asynchronous "
        "rollout.",
        when=all_of(
            among("rollout_function_path", "*fully_async_rollout*"),
            one_of(given("dynamic_sampling_filter_path"), given("rollout_all_samples_process_path")),
        ),
        sites=(_ASYNC,),
        upstream=("THUDM/slime#2061",),
        way_out="--rollout-sample-filter-path with slime.async-sample-filter, which can take samples out of "
        "the loss",
        tried="tests/real/test_contracts.py::test_with_the_patch_the_contract_holds",
    ),
    _silent(
        id="slime.eps-clip-c-ignored-by-fsdp",
        summary="FSDP's trainer parses --eps-clip-c and never uses it: dual clipping is off.",
        met="--eps-clip-c with the FSDP backend.",
        when=all_of(given("eps_clip_c"), among("train_backend", "fsdp")),
        sites=(_FSDP,),
        upstream=("THUDM/slime#2247",),
        way_out="train on Megatron, with slime.eps-clip-c",
        tried="tests/real/test_contracts.py::test_with_the_patch_the_contract_holds",
    ),
    _silent(
        id="slime.qwen-tool-results-split",
        summary="SFT with --loss-mask-type qwen gives each of several tool results a turn of its own.",
        met="SFT with --loss-mask-type qwen on conversations in which results of tools follow each other.",
        when=all_of(
            among("loss_type", "sft_loss"),
            among("loss_mask_type", "qwen"),
            beyond("results of tools follow each other in the data"),
        ),
        sites=(_QWEN,),
        upstream=("THUDM/slime#2264",),
        way_out="for a model with that template --loss-mask-type qwen3_5, from 0.2.4 on, or before "
        "--loss-mask-type qwen3 with slime.tool-turn-mask; 0.1.0 has neither",
        tried="tests/real/test_advice.py::test_slimes_other_masks_keep_the_results_of_tools_in_one_turn",
    ),
    _silent(
        id="slime.masked-kl-in-returns",
        summary="REINFORCE++ subtracts the KL of tokens outside the loss from all returns before them.",
        met="--advantage-estimator reinforce_plus_plus with --kl-coef, and masked tokens in responses.",
        when=all_of(
            among("advantage_estimator", "reinforce_plus_plus"),
            other("kl_coef", 0),
            beyond("some token of a response is masked"),
        ),
        sites=(_RETURNS,),
        upstream=("THUDM/slime#1372",),
        fixed="0.2.2",
        shown="tests/real/test_advice.py::test_without_kl_masked_tokens_leave_returns_alone",
        way_out="--kl-coef 0, with --use-kl-loss if the policy is to stay near the reference",
        tried="tests/real/test_advice.py::test_without_kl_masked_tokens_leave_returns_alone",
    ),
    _silent(
        id="slime.kl-metric-overwritten",
        summary="PPO's metric rollout/kl shows rewards.",
        met="PPO.",
        when=all_of(among("advantage_estimator", "ppo")),
        sites=(_ADVANTAGES,),
        upstream=("THUDM/slime#2114",),
    ),
    _crash(
        id="slime.correct-samples-mispaired",
        summary="--log-correct-samples looks up a rank's samples by the whole batch's rewards: IndexError "
        "if one of its later samples is correct, else the wrong ones are taken for correct.",
        met="--log-correct-samples with a data parallel size above 1.",
        when=all_of(switched("log_correct_samples"), beyond("there are several data parallel ranks")),
        sites=(_LOG, "slime.utils.data:process_rollout_data"),
        upstream=("THUDM/slime#2234",),
        shown="tests/real/test_advice.py::test_without_correct_samples_slime_reports_a_ranks_own",
        way_out="leave --log-correct-samples out",
        tried="tests/real/test_advice.py::test_without_correct_samples_slime_reports_a_ranks_own",
    ),
    _crash(
        id="slime.mtp-heads-not-logged",
        summary="Training with several layers of multi-token prediction ends in RuntimeError.",
        met="--enable-mtp-training with --mtp-num-layers above 1.",
        when=all_of(switched("enable_mtp_training"), above("mtp_num_layers", 1)),
        sites=(_TRAIN,),
        upstream=("THUDM/slime#2132",),
        shown="tests/real/test_advice.py::test_the_loss_of_one_head_is_logged",
        way_out="--mtp-num-layers 1",
        tried="tests/real/test_advice.py::test_the_loss_of_one_head_is_logged",
    ),
    _silent(
        id="slime.teacher-at-temperature-1",
        summary="On-policy distillation compares the student at --rollout-temperature with an SGLang "
        "teacher at 1, because SGLang scores prompt tokens at 1 whatever a request asks for.",
        met="On-policy distillation with a teacher on SGLang, at a --rollout-temperature other than 1.",
        when=all_of(among("opd_type", "sglang"), other("rollout_temperature", 1)),
        sites=(_REWARD,),
        upstream=("THUDM/slime#2085",),
        way_out="--rollout-temperature 1, or --opd-type megatron, whose teacher slime scores at "
        "--rollout-temperature",
    ),
)
