"""What is known to be wrong in verl and mended by a patch."""

from __future__ import annotations

from functools import partial

from overlay.compat.projects import VERL
from overlay.defect import Defect, above, among, beyond, other, switched
from overlay.patches._defects._short_forms import all_of, one_of

_MEGATRON = among("strategy", "megatron")

_defect = partial(Defect, project=VERL)

DEFECTS = (
    _defect(
        id="verl.recompute-frees-aliases",
        summary="verl frees the memory of recomputed inputs by force: whatever else reads it, as under "
        "multi-token prediction, reads garbage. Nobody notices.",
        harm="silent-wrong",
        when=all_of(
            _MEGATRON,
            among("recompute_granularity", "full"),
            beyond("something keeps an alias of a layer's input"),
        ),
        shown="tests/real/test_recompute_verl.py::test_verls_engines_leave_our_backward_in_place",
        patch="megatron.recompute",
    ),
    _defect(
        id="verl.critic-scale-by-micro-batches",
        summary="The critic's gradient grows with the number of micro-batches, and a short one counts as "
        "much as a full one: changing the micro-batch size changes the learning rate.",
        harm="silent-wrong",
        when=all_of(
            one_of(switched("critic.enable"), among("critic.enable", None)),
            one_of(switched("critic.enable"), among("algorithm.adv_estimator", "gae")),
            # The legacy workers of 0.7 weigh by samples, which is a record of its own.
            other("trainer.use_legacy_worker_impl", "auto", "enable"),
            beyond("a mini-batch has several micro-batches or ranks"),
        ),
        patch="verl.critic-loss-scale",
    ),
    _defect(
        id="verl.distillation-scale-stale",
        summary="The loss of a distillation is divided by the tokens of the mini-batch before. Nobody "
        "notices.",
        harm="silent-wrong",
        when=all_of(switched("distillation.enabled")),
        patch="verl.distillation-loss-scale",
    ),
    _defect(
        id="verl.dynamic-cp-gradient",
        summary="Under dynamic context parallelism the gradient is too small by the data parallel size or "
        "its square, and the loss that is reported is wrong by another factor. Nobody notices but by "
        "a job that hardly learns.",
        harm="silent-wrong",
        when=all_of(switched("dynamic_context_parallel")),
        patch="verl.dynamic-cp-loss",
    ),
    _defect(
        id="verl.dynamic-cp-empty-subgroup",
        summary="Under dynamic context parallelism a rank that gets no sequence ends the job in an "
        "AssertionError.",
        harm="crash",
        when=all_of(switched("dynamic_context_parallel"), beyond("a subgroup gets no sequence")),
        patch="verl.dynamic-cp-loss",
    ),
    _defect(
        id="verl.partitioner-slow",
        summary="The partitioner takes time that grows with samples times parts, on every rank and in every "
        "step. One notices by idle devices.",
        harm="slow",
        patch="verl.fast-partitioner",
    ),
    _defect(
        id="verl.fsdp-keeps-outputs",
        summary="In training the FSDP engine keeps the outputs of each micro-batch with their graph. One "
        "notices by memory that grows with the number of micro-batches.",
        harm="out-of-memory",
        when=all_of(among("strategy", "fsdp", "fsdp2"), beyond("a mini-batch has several micro-batches")),
        patch="verl.fsdp-output-memory",
    ),
    _defect(
        id="verl.returns-end-at-observations",
        summary="REINFORCE++ credits the last turn alone: the turns before it have one advantage whether the "
        "rollout succeeded or not. Nobody notices.",
        harm="silent-wrong",
        when=all_of(
            among("algorithm.adv_estimator", "reinforce_plus_plus"),
            one_of(switched("multi_turn.enable"), beyond("an agent loop calls tools or users")),
        ),
        patch="verl.multi-turn-returns",
    ),
    _defect(
        id="verl.offload-frees-shared-storage",
        summary="Offloading a reference model frees memory that another parameter shares: it reads what "
        "comes next. Nobody notices.",
        harm="silent-wrong",
        when=all_of(_MEGATRON, switched("param_offload"), beyond("parameters share storage")),
        patch="verl.offload-shared-storage",
    ),
    _defect(
        id="verl.resume-skips-an-epoch",
        summary="A job that is resumed from the last step of an epoch (in 0.9 one of SFT) skips the next, or "
        "ends at once with exit code 0. Nobody notices but by the number of steps.",
        harm="silent-wrong",
        when=all_of(
            other("trainer.resume_mode", "disable"), beyond("it resumes from the last step of an epoch")
        ),
        patch="verl.resume-epoch-boundary",
    ),
    _defect(
        id="verl.resume-restarts-schedule",
        summary="On Megatron each resume starts warm-up and decay of the learning rate anew. One notices "
        "only in the curve of the learning rate.",
        harm="silent-wrong",
        when=all_of(
            _MEGATRON,
            among("use_checkpoint_opt_param_scheduler", False),
            one_of(
                other("lr_decay_style", "constant"),
                above("lr_warmup_steps_ratio", 0),
                above("lr_warmup_steps", 0),
            ),
            beyond("the job resumes from a checkpoint"),
        ),
        patch="verl.resume-lr-schedule",
    ),
    _defect(
        id="verl.validation-reseeds",
        summary="Each validation sets NumPy's global generator back: what draws from it draws the same "
        "again. Nobody notices.",
        harm="silent-wrong",
        when=all_of(beyond("code in the trainer's process draws from np.random")),
        patch="verl.seeded-validation",
    ),
    _defect(
        id="verl.sft-ranks-uneven",
        summary="SFT on Ray gives ranks uneven work, or spends long on sharing it out. One notices by idle "
        "devices.",
        harm="slow",
        when=all_of(other("trainer.balance_batch", False), beyond("it is SFT on Ray")),
        patch="verl.sft-balance",
    ),
    _defect(
        id="verl.budget-exceeded",
        summary="With dynamic batch sizes micro-batches exceed the limit of tokens. One notices by running "
        "out of memory some steps into a run.",
        harm="out-of-memory",
        when=all_of(one_of(switched("use_dynamic_bsz"), switched("log_prob_use_dynamic_bsz"))),
        patch="verl.strict-token-budget",
    ),
    _defect(
        id="verl.budget-error-on-one-rank",
        summary="A rank that cannot split its batch raises alone, and the others wait in their next "
        "collective.",
        harm="hang",
        when=all_of(
            one_of(switched("use_dynamic_bsz"), switched("log_prob_use_dynamic_bsz")),
            beyond("a rank cannot split its batch"),
        ),
        patch="verl.strict-token-budget",
    ),
    _defect(
        id="verl.lora-views-reused",
        summary="LoRA adapters reach vLLM as views of a buffer that is used again: cudaErrorIllegalAddress "
        "is reported.",
        harm="crash",
        when=all_of(one_of(above("lora_rank", 0), above("lora.rank", 0)), among("lora.merge", False)),
        patch="verl.lora-own-memory",
    ),
    _defect(
        id="verl.mooncake-mark-in-weights",
        summary="A rollout worker writes its mark of completion into the first four bytes of a bucket of "
        "weights that the one before it may not have loaded yet. Nobody notices.",
        harm="silent-wrong",
        when=all_of(
            among("checkpoint_engine.backend", "mooncake"),
            beyond("there are two or more separate rollout workers"),
        ),
        patch="verl.mooncake-mark",
    ),
    _defect(
        id="verl.weights-read-early",
        summary="Separate rollout workers read the first bucket of weights before NCCL has written it. "
        "Nobody notices but by odd rollouts.",
        harm="silent-wrong",
        when=all_of(among("checkpoint_engine.backend", "nccl")),
        patch="verl.weight-transfer-order",
    ),
    _defect(
        id="verl.offload-leaves-copies",
        summary="Offloading on Megatron leaves the master weights of a precision-aware optimizer and FP8 "
        "copies of weights on the device. One notices by memory.",
        harm="out-of-memory",
        met="Offloading with Megatron, a precision-aware optimizer or FP8 weights.",
        when=(
            (_MEGATRON, switched("optimizer_offload"), beyond("the optimizer is precision-aware")),
            (_MEGATRON, switched("param_offload"), beyond("weights are FP8")),
        ),
        patch="verl.megatron-offload-rest",
    ),
    _defect(
        id="verl.per-token-loss-untold",
        summary="verl does not tell Megatron how many tokens there are: with a loss per token, data parallel "
        "ranks add gradients up instead of averaging them. One may notice a large gradient norm.",
        harm="silent-wrong",
        met="calculate_per_token_loss in the configuration of Megatron's model.",
        when=all_of(_MEGATRON, switched("calculate_per_token_loss")),
        patch="verl.moe-aux-scale",
    ),
)
