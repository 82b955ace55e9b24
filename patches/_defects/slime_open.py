"""What is known to be wrong in slime and that no patch mends."""

from __future__ import annotations

from functools import partial

from overlay.compat.projects import SLIME
from overlay.defect import Defect, above, among, beyond, given, other, switched
from overlay.patch import Absent, known
from overlay.patches._defects._short_forms import absent, all_of, fixed, present

_FSDP = "slime.backends.fsdp_utils.actor:FSDPTrainRayActor._train_step"
_QWEN = "slime.utils.mask_utils:MultiTurnLossMaskGenerator.gen_multi_turn_loss_mask_qwen"
_STEP = "slime.backends.megatron_utils.model:train_one_step"
_ADVANTAGES = "slime.backends.megatron_utils.loss:compute_advantages_and_returns"
_TRAIN = "slime.backends.megatron_utils.model:train"
_REWARD = "slime.rollout.on_policy_distillation:reward_func"
_LOG = "slime.backends.megatron_utils.data:log_rollout_data"

_defect = partial(Defect, project=SLIME)

DEFECTS = (
    _defect(
        id="slime.eps-clip-c-ignored-by-fsdp",
        summary="FSDP's trainer parses --eps-clip-c and never uses it: dual clipping is off. Nobody notices.",
        harm="silent-wrong",
        met="--eps-clip-c with the FSDP backend.",
        when=all_of(given("eps_clip_c"), among("train_backend", "fsdp")),
        variants=(
            present("0.2.0", ">=0.1.0.dev0", known(_FSDP, "85c8cbe36f8f", "aadcaa3f2fe0", "58c82ee57bd9")),
            absent("none", ">=0", Absent(site=_FSDP), reason="there is no such trainer"),
        ),
        upstream=("THUDM/slime#2247",),
        way_out="train on Megatron, with slime.eps-clip-c",
        tried="tests/real/test_contracts.py::test_with_the_patch_the_contract_holds",
    ),
    _defect(
        id="slime.qwen-tool-results-split",
        summary="SFT with --loss-mask-type qwen gives each of several tool results a turn of its own, which "
        "the model's template never does. Nobody notices.",
        harm="silent-wrong",
        met="SFT with --loss-mask-type qwen on conversations in which results of tools follow each other.",
        when=all_of(
            among("loss_type", "sft_loss"),
            among("loss_mask_type", "qwen"),
            beyond("results of tools follow each other in the data"),
        ),
        variants=(
            present(
                "0.1",
                ">=0",
                known(_QWEN, "be985f53b191", "0794acad203d", "a506b7784e46", "612fb21bdc09", "0b7dad0d07b4"),
            ),
        ),
        upstream=("THUDM/slime#2264",),
        way_out="for a model with that template --loss-mask-type qwen3_5, from 0.2.4 on, or before "
        "--loss-mask-type qwen3 with slime.tool-turn-mask; 0.1.0 has neither",
        tried="tests/real/test_advice.py::test_slimes_other_masks_keep_the_results_of_tools_in_one_turn",
    ),
    _defect(
        id="slime.grad-norm-unbound",
        summary="A step that is skipped for an infinite gradient ends the job in UnboundLocalError, instead "
        "of being skipped.",
        harm="crash",
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
        variants=(
            present(
                "0.1",
                ">=0",
                known(_STEP, "b065fb1e9ca5", "a2c41ec3ce98", "9511655dbe4a", "4ae619efcb86", "2d0b03ca756a"),
            ),
            fixed(
                "0.3",
                ">=0",
                known(_STEP, "2f3196bd694d", "6c37bc868e7c", "9f50c5dc3441", "0fe23bd2f05f"),
                reason="the norm of a skipped step is NaN",
            ),
        ),
        upstream=("THUDM/slime#1762",),
        fixed="0.3.0",
        way_out="train in bfloat16, without --loss-scale",
    ),
    _defect(
        id="slime.kl-metric-overwritten",
        summary="PPO makes its rewards in the tensors of the KL: the metric rollout/kl shows rewards. "
        "Training is right; whoever steers by the metric is misled.",
        harm="silent-wrong",
        met="PPO.",
        when=all_of(among("advantage_estimator", "ppo")),
        variants=(
            present(
                "0.2",
                ">=0.1.0.dev0",
                known(
                    _ADVANTAGES,
                    "a66e425738e0",
                    "3548c5dd5ade",
                    "45ee1816ba0e",
                    "ee46cc8cc4e3",
                    "35d9bb8ea6f7",
                    "2f3b104525de",
                ),
            ),
            fixed(
                "main", ">=0.3", known(_ADVANTAGES, "2cb81e45e500"), reason="rewards are tensors of their own"
            ),
            absent("0.1", "<0.1.0.dev0", known(_ADVANTAGES, "227c1383b566"), reason="there is no PPO"),
        ),
        upstream=("THUDM/slime#2114",),
    ),
    _defect(
        id="slime.correct-samples-mispaired",
        summary="--log-correct-samples pairs the rewards of the whole batch with the samples of one rank: "
        "its metrics are of other samples. Training is right.",
        harm="silent-wrong",
        met="--log-correct-samples with a data parallel size above 1.",
        when=all_of(switched("log_correct_samples"), beyond("there are several data parallel ranks")),
        variants=(
            present(
                "0.2.2", ">=0.2", known(_LOG, "edf7f555af03", "7d7580b100a9", "426a1cb7faa2", "d3665990505a")
            ),
            fixed(
                "main",
                ">=0.3",
                known("slime.utils.data:process_rollout_data", "40b7df6e03a5"),
                reason="rewards are those of the rank's samples",
            ),
            absent(
                "before 0.2.2", "<0.2.2", known(_LOG, "03d575b2c590", "af325ffc0673"), reason="no such option"
            ),
        ),
        upstream=("THUDM/slime#2234",),
        way_out="leave --log-correct-samples out",
    ),
    _defect(
        id="slime.mtp-heads-not-logged",
        summary="Training with several layers of multi-token prediction ends in RuntimeError: a Tensor with "
        "2 elements cannot be converted to Scalar.",
        harm="crash",
        met="--enable-mtp-training with --mtp-num-layers above 1.",
        when=all_of(switched("enable_mtp_training"), above("mtp_num_layers", 1)),
        variants=(
            present(
                "0.2",
                ">=0.1.0.dev0",
                known(
                    _TRAIN,
                    "8fd0760de1b2",
                    "0e79554f58e9",
                    "9976852c76d1",
                    "474ecb5764d2",
                    "df28b2d0e898",
                    "ce6fbdafd4ad",
                    "30f3068b9d79",
                ),
            ),
            fixed("main", ">=0.3", known(_TRAIN, "fd1259fbc857"), reason="each layer's loss is logged"),
            absent("0.1", "<0.1.0.dev0", known(_TRAIN, "8190307f56c8"), reason="there is no such training"),
        ),
        upstream=("THUDM/slime#2132",),
        way_out="--mtp-num-layers 1",
    ),
    _defect(
        id="slime.teacher-at-temperature-1",
        summary="On-policy distillation compares the student at --rollout-temperature with an SGLang teacher "
        "at 1: SGLang scores the tokens of a request at 1, whatever temperature it asks for. Nobody notices.",
        harm="silent-wrong",
        met="On-policy distillation with a teacher on SGLang, at a --rollout-temperature other than 1.",
        when=all_of(among("opd_type", "sglang"), other("rollout_temperature", 1)),
        variants=(
            # The last asks for --rollout-temperature in place of 0, which changes nothing.
            present("0.2.3", ">=0.2.2.dev0", known(_REWARD, "b20ddc59403e", "ef2380c10da4", "ec137632a649")),
            absent("before 0.2.3", "<0.2.3.dev0", Absent(site=_REWARD), reason="there is no such teacher"),
        ),
        upstream=("THUDM/slime#2085",),
        way_out="--rollout-temperature 1, or --opd-type megatron, whose teacher slime scores at "
        "--rollout-temperature",
    ),
)
