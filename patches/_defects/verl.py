"""What is known to be wrong in verl and fixed by a patch."""

from __future__ import annotations

from overlay.compat.projects import VERL
from overlay.defect import above, among, beyond, given, other, switched
from overlay.patches._defects._short_forms import all_of, by_harm, one_of

_MEGATRON = among("strategy", "megatron", "mindspeed*")
_RESUMED = other("trainer.resume_mode", "disable")
_DYNAMIC = one_of(switched("use_dynamic_bsz"), switched("log_prob_use_dynamic_bsz"))

_silent, _hang, _oom, _crash, _slow = by_harm(VERL)

DEFECTS = (
    _silent(
        id="verl.ranks-differ",
        summary="Ranks with different patches or sources train together: verl compares nothing.",
        when=all_of(beyond("the environments of the ranks differ")),
        patch="verl.agreement",
    ),
    _silent(
        id="verl.recompute-frees-aliases",
        summary="verl frees recomputed inputs by force, so anything else that uses them reads garbage.",
        when=all_of(
            _MEGATRON,
            among("recompute_granularity", "full"),
            beyond("something keeps an alias of a layer's input"),
        ),
        shown="tests/real/test_recompute_verl.py::test_verls_engines_leave_our_backward_in_place",
        patch="megatron.recompute",
    ),
    _silent(
        id="verl.critic-scale-by-micro-batches",
        summary="The critic's gradient grows with the number of micro-batches, and a short one counts "
        "as much as a full one. So the micro-batch size changes the learning rate.",
        when=all_of(
            one_of(switched("critic.enable"), among("critic.enable", None)),
            one_of(switched("critic.enable"), among("algorithm.adv_estimator", "gae")),
            # The legacy workers of 0.7 weigh by samples, which is a record of its own.
            other("trainer.use_legacy_worker_impl", "auto", "enable"),
            beyond("a mini-batch has several micro-batches or ranks"),
        ),
        patch="verl.critic-loss-scale",
    ),
    _silent(
        id="verl.distillation-scale-stale",
        summary="The loss of a distillation is divided by the tokens of the mini-batch before.",
        when=all_of(switched("distillation.enabled")),
        patch="verl.distillation-loss-scale",
    ),
    _silent(
        id="verl.dynamic-cp-gradient",
        summary="Under dynamic context parallelism, the gradient is too small by the data parallel "
        "size or its square, and the reported loss is wrong by another factor.",
        when=all_of(switched("dynamic_context_parallel")),
        patch="verl.dynamic-cp-loss",
    ),
    _crash(
        id="verl.dynamic-cp-empty-subgroup",
        summary="Under dynamic context parallelism a rank without a sequence ends in an AssertionError.",
        when=all_of(switched("dynamic_context_parallel"), beyond("a subgroup gets no sequence")),
        patch="verl.dynamic-cp-loss",
    ),
    _slow(
        id="verl.partitioner-slow",
        summary="The partitioner's time grows with samples times parts, in every step.",
        patch="verl.fast-partitioner",
    ),
    _oom(
        id="verl.fsdp-keeps-outputs",
        summary="In training, the FSDP engine keeps the outputs of each micro-batch with their graph.",
        when=all_of(
            among("strategy", "fsdp", "fsdp2", "veomni"), beyond("a mini-batch has several micro-batches")
        ),
        patch="verl.fsdp-output-memory",
    ),
    _silent(
        id="verl.returns-end-at-observations",
        summary="REINFORCE++ credits only the last turn, whether the rollout succeeded or not.",
        when=all_of(
            among("algorithm.adv_estimator", "reinforce_plus_plus"),
            one_of(switched("multi_turn.enable"), beyond("an agent loop calls tools or users")),
        ),
        patch="verl.multi-turn-returns",
    ),
    _silent(
        id="verl.offload-frees-shared-storage",
        summary="Offloading a reference model frees memory that another parameter shares.",
        when=all_of(_MEGATRON, switched("param_offload"), beyond("parameters share storage")),
        patch="verl.offload-shared-storage",
    ),
    _silent(
        id="verl.resume-skips-an-epoch",
        summary="A job that resumes from the last step of an epoch (in 0.9 only SFT) skips the next, "
        "or ends at once with exit code 0. Only the number of steps shows it.",
        when=all_of(_RESUMED, beyond("it resumes from the last step of an epoch")),
        patch="verl.resume-epoch-boundary",
    ),
    _silent(
        id="verl.resume-restarts-schedule",
        summary="On Megatron, each resume restarts warm-up and decay of the learning rate.",
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
    _silent(
        id="verl.validation-reseeds",
        summary="Each validation resets NumPy's global generator, so the same numbers are drawn again.",
        when=all_of(beyond("code in the trainer's process draws from np.random")),
        patch="verl.seeded-validation",
    ),
    _slow(
        id="verl.sft-ranks-uneven",
        summary="SFT on Ray gives ranks uneven work, or takes long to share it out.",
        when=all_of(other("trainer.balance_batch", False), beyond("it is SFT on Ray")),
        patch="verl.sft-balance",
    ),
    _oom(
        id="verl.budget-exceeded",
        summary="With dynamic batch sizes micro-batches exceed the limit of tokens.",
        when=all_of(_DYNAMIC),
        patch="verl.strict-token-budget",
    ),
    _hang(
        id="verl.budget-error-on-one-rank",
        summary="A rank that cannot split its batch raises alone, and the others wait for it.",
        when=all_of(_DYNAMIC, beyond("a rank cannot split its batch")),
        patch="verl.strict-token-budget",
    ),
    _crash(
        id="verl.lora-views-reused",
        summary="LoRA adapters reach vLLM as views of a buffer in use: cudaErrorIllegalAddress.",
        when=all_of(one_of(above("lora_rank", 0), above("lora.rank", 0)), among("lora.merge", False)),
        patch="verl.lora-own-memory",
    ),
    _silent(
        id="verl.lora-unmerged-sent",
        summary="With merged LoRA on FSDP2 the rollout gets the base model in each weight update: rewards do "
        "not rise.",
        when=all_of(
            among("strategy", "fsdp2"),
            one_of(above("lora_rank", 0), above("lora.rank", 0)),
            switched("lora.merge"),
            other("trainer.use_legacy_worker_impl", "auto", "enable"),
        ),
        patch="verl.lora-merged-sync",
        only=("0.7.1 and 0.8",),
    ),
    _silent(
        id="verl.lora-outside-layers-unmerged",
        summary="With merged LoRA on FSDP2 the rollout gets the base weights of modules outside the wrapped "
        "layers, such as the merger of a vision model.",
        when=all_of(
            among("strategy", "fsdp2"),
            one_of(above("lora_rank", 0), above("lora.rank", 0)),
            switched("lora.merge"),
            beyond(
                "a module outside the wrapped layers has an adapter, as the merger of Qwen2.5-VL has with "
                "target_modules=all-linear"
            ),
        ),
        met="LoRA that is merged (lora.merge=True) on FSDP2, with an adapter outside the wrapped layers.",
        patch="verl.lora-merged-sync",
        only=("0.9",),
        way_out="leave such modules out of the adapter (exclude_modules)",
    ),
    _silent(
        id="verl.dora-unmerged-sent",
        summary="With a merged DoRA adapter on FSDP2 the rollout gets the base model: peft assigns "
        "`weight.data`, which changes no shard.",
        when=all_of(
            among("strategy", "fsdp2"),
            one_of(above("lora_rank", 0), above("lora.rank", 0)),
            given("lora_adapter_path"),
            switched("lora.merge"),
            beyond("the adapter is one of DoRA (use_dora)"),
        ),
        met="A DoRA adapter (lora_adapter_path) that is merged (lora.merge=True) on FSDP2.",
        patch="verl.lora-merged-sync",
        only=("0.9",),
    ),
    _crash(
        id="verl.lora-merge-of-shards",
        summary="Merging LoRA on FSDP2 fails for convolutions, for experts whose number the ranks do not "
        "divide, and for weights with fewer rows than ranks.",
        when=all_of(
            among("strategy", "fsdp2"),
            one_of(above("lora_rank", 0), above("lora.rank", 0)),
            switched("lora.merge"),
            beyond("a layer has an adapter on one of these"),
        ),
        met="LoRA that is merged (lora.merge=True) on FSDP2, with an adapter on such a module.",
        patch="verl.lora-merged-sync",
    ),
    _silent(
        id="verl.turns-unseparated",
        summary="Before the turn of a tool, what the chat template puts between turns is lost, such as the "
        "line feed of Qwen's.",
        when=all_of(
            one_of(
                switched("multi_turn.enable"),
                among("default_agent_loop", "tool_agent"),
                beyond("the data set names the agent tool_agent"),
            ),
            beyond("the chat template separates turns, as those of Qwen do"),
        ),
        patch="verl.turn-separator",
    ),
    _silent(
        id="verl.images-seen-by-old-weights",
        summary="After a weight update, an image that vLLM has seen before enters the rollout as the earlier "
        "weights encoded it.",
        when=all_of(
            among("rollout.name", "vllm"),
            one_of(
                among("free_cache_engine", False),
                other("checkpoint_engine.backend", "naive"),
                beyond("verl is before 0.8, or vLLM before 0.17"),
            ),
            beyond("the model has a vision encoder that is trained"),
        ),
        patch="verl.multimodal-caches",
    ),
    _silent(
        id="verl.mooncake-mark-in-weights",
        summary="A completion mark overwrites four bytes of weights that may not have been loaded yet.",
        when=all_of(
            among("checkpoint_engine.backend", "mooncake"),
            beyond("there are two or more separate rollout workers"),
        ),
        patch="verl.mooncake-mark",
    ),
    _silent(
        id="verl.weights-read-early",
        summary="Separate rollout workers read the first weight bucket before NCCL has written it.",
        when=all_of(among("checkpoint_engine.backend", "nccl")),
        patch="verl.weight-transfer-order",
    ),
    _oom(
        id="verl.offload-leaves-copies",
        summary="Offloading on Megatron leaves FP8 copies and precision-aware master weights on the device.",
        met="Offloading with Megatron, a precision-aware optimizer or FP8 weights.",
        when=(
            (_MEGATRON, switched("optimizer_offload"), beyond("the optimizer is precision-aware")),
            (_MEGATRON, switched("param_offload"), beyond("weights are FP8")),
        ),
        patch="verl.megatron-offload-rest",
    ),
    _silent(
        id="verl.per-token-loss-untold",
        summary="With a loss per token, data parallel ranks sum gradients instead of averaging them.",
        met="calculate_per_token_loss in the configuration of Megatron's model.",
        when=all_of(_MEGATRON, switched("calculate_per_token_loss")),
        patch="verl.moe-aux-scale",
    ),
    _crash(
        id="verl.vpp-hooks-refused",
        summary="With virtual pipeline stages and overlap_grad_reduce a job ends at its start: "
        "config.no_sync_func must be None.",
        when=all_of(
            _MEGATRON,
            above("virtual_pipeline_model_parallel_size", 1),
            switched("overlap_grad_reduce"),
        ),
        patch="verl.vpp-training-hooks",
    ),
    _silent(
        id="verl.rejected-move-their-group",
        summary="Rewards of responses that rejection sampling rejects whole still move the advantages of "
        "their group.",
        when=all_of(
            other("rollout_correction.rollout_rs", None),
            among(
                "algorithm.adv_estimator",
                *(
                    "grpo",
                    "grpo_vectorized",
                    "opo",
                    "reinforce_plus_plus_baseline",
                    "rloo",
                    "rloo_vectorized",
                ),
            ),
            beyond("a response is rejected whole"),
        ),
        patch="verl.rejected-in-groups",
    ),
)
