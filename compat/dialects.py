"""How the settings of jobs are written, for `overlay audit --settings`, and what upstreams take by default.

A default here goes before one that is read in an upstream's own files: it is one that no file states in one
place, or that defects ask for by the end of a path alone.
"""

from __future__ import annotations

from overlay.defect import Dialect, Setting

#: Megatron's own, whoever starts it: what its parser, or the class behind an argument, begins with.
_MEGATRON: dict[str, object] = {
    **dict.fromkeys((
        "sequence_parallel", "calculate_per_token_loss", "multi_latent_attention", "moe_layer_recompute",
        "async_save", "use_persistent_ckpt_worker", "load_main_params_from_ckpt",
        "dist_ckpt_optim_fully_reshardable", "overlap_grad_reduce", "optimizer_cpu_offload",
        "attention_output_gate", "fp32_residual_connection", "use_precision_aware_optimizer",
        "reuse_grad_buf_for_mxfp8_param_ag", "use_checkpoint_opt_param_scheduler",
        "no_check_for_nan_in_loss_and_grad", "no_overlap_p2p_communication", "log_max_attention_logit",
        "qk_clip", "fp16",
    ), False),
    **dict.fromkeys((
        "num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank",
        "virtual_pipeline_model_parallel_size", "pipeline_model_parallel_layout",
        "nccl_communicator_config_path", "recompute_granularity", "num_experts", "cp_comm_type",
        "moe_z_loss_coeff", "moe_router_dtype", "mtp_num_layers", "experimental_attention_variant",
        "lr_warmup_fraction", "loss_scale", "decoupled_lr",
    ), None),
    "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1, "context_parallel_size": 1,
    "softmax_type": "vanilla", "moe_aux_loss_coeff": 0.0, "moe_router_score_function": "softmax",
    "moe_router_load_balancing_type": "aux_loss", "num_distributed_optimizer_instances": 1,
    "lr_decay_style": "linear", "lr_warmup_iters": 0, "lr_warmup_samples": 0,
    "weight_decay_incr_style": "constant",
}  # fmt: skip
_OF_THE_MODEL = (
    "num_experts", "multi_latent_attention", "softmax_type", "moe_aux_loss_coeff", "moe_z_loss_coeff",
    "moe_router_load_balancing_type", "moe_router_score_function", "moe_router_dtype", "mtp_num_layers",
    "attention_output_gate", "experimental_attention_variant",
)  # fmt: skip
_VIRTUAL_STAGES = (
    "num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank",
    "virtual_pipeline_model_parallel_size",
)  # fmt: skip
_OF_THE_LAYOUT = ("tensor_model_parallel_size", "pipeline_model_parallel_size", *_VIRTUAL_STAGES)
_OF_A_PATTERN = (
    "mtp_num_layers", "multi_latent_attention", "experimental_attention_variant", *_VIRTUAL_STAGES,
)  # fmt: skip
_SLIME: dict[str, object] = {
    **dict.fromkeys((
        "allgather_cp", "balance_by_flops", "balance_data", "colocate", "disable_rewards_normalization",
        "enable_mtp_training", "keep_old_actor", "log_correct_samples", "normalize_advantages", "offload",
        "offload_train", "partial_rollout", "true_on_policy_mode", "use_dynamic_batch_size",
        "use_dynamic_global_batch_size", "use_opd", "use_rollout_routing_replay",
    ), False),
    **dict.fromkeys((
        "ckpt_step", "custom_generate_function_path", "custom_reward_post_process_path",
        "dynamic_sampling_filter_path", "eps_clip_c", "eval_config", "eval_max_prompt_len",
        "eval_min_new_tokens", "opd_teacher_ckpt_step", "opd_type", "ref_ckpt_step",
        "rollout_all_samples_process_path", "rollout_batch_size", "rollout_max_prompt_len",
        "rollout_sample_filter_path",
    ), None),
    "advantage_estimator": "grpo", "critic_lr_warmup_iters": 0, "distributed_timeout_minutes": 10,
    "gamma": 1.0, "kl_coef": 0.0, "lambd": 1.0, "loss_mask_type": "qwen", "loss_type": "policy_loss",
    "megatron_to_hf_mode": "raw", "qkv_format": "thd",
    "rollout_function_path": "slime.rollout.sglang_rollout.generate_rollout", "rollout_temperature": 1.0,
    "train_backend": "megatron",
}  # fmt: skip

_CLASSES = (
    "megatron/core/transformer/transformer_config.py",
    "megatron/core/model_parallel_config.py",
    "megatron/core/optimizer/optimizer_config.py",
    "megatron/core/distributed/distributed_data_parallel_config.py",
)

FLAGS = Dialect(
    name="a command line of slime, miles or Megatron",
    projects=("slime", "miles", "megatron-core"),
    marks=("hf_checkpoint", "rollout_batch_size", "micro_batch_size", "num_layers", *_MEGATRON, *_SLIME),
    defaults=_MEGATRON | _SLIME,
    passed=(
        "sglang_*", "address", "head", "node_ip_address", "num_gpus", "disable_usage_stats", "dashboard_*",
        "force", "runtime_env_json", "working_dir", "nproc_per_node", "nnodes", "node_rank", "master_addr",
        "master_port",
    ),
    negated={
        "disable_rewards_normalization": "rewards_normalization",
        "no_check_for_nan_in_loss_and_grad": "check_for_nan_in_loss_and_grad",
        "no_overlap_p2p_communication": "overlap_p2p_comm",
    },
    implies=(
        # From slime 0.3 on a critic turns it on all the same.
        ("no_offload_train", "True", "offload_train", ...),
        ("release_train", "True", "offload_train", False),
        ("debug_rollout_only", "True", "offload_train", False),
        ("colocate", "True", "offload_train", True),
        # With a critic slime turns it on by itself.
        ("advantage_estimator", "ppo", "offload_train", ...),
        ("recompute_activations", "True", "recompute_granularity", "selective"),
        # Its text may say what other flags say.
        *(("hybrid_layer_pattern", "*", key, ...) for key in _OF_A_PATTERN),
        ("offload", "True", "offload_train", True),
        ("no_rope_fusion", "True", "apply_rope_fusion", False),
        # Without one Megatron drops async_save from 0.16 on, and slime always has one from 0.3.1 on.
        ("async_save", "True", "use_persistent_ckpt_worker", ...),
        # As Megatron's YAML calls them.
        ("num_moe_experts", "None", "num_experts", None),
        ("num_moe_experts", "*", "num_experts", ...),
        ("overlap_p2p_comm", "False", "no_overlap_p2p_communication", True),
        ("check_for_nan_in_loss_and_grad", "False", "no_check_for_nan_in_loss_and_grad", True),
        # slime makes the model from the checkpoint then, and hands it none of these.
        *(("megatron_to_hf_mode", "bridge", key, ...) for key in _OF_THE_MODEL),
        # slime makes one limit of the other.
        ("rollout_max_context_len", "*", "rollout_max_prompt_len", ...),
    ),
    decided=(
        ("custom_config_path", "*", ()),  # slime's file
        ("megatron_config_path", "*", ()),  # slime's, too
        ("yaml_cfg", "*", ()),
        ("use_checkpoint_args", "*", _OF_THE_MODEL),
        ("use_mp_args_from_checkpoint_args", "*", _OF_THE_LAYOUT),
        # A function of the user's own, which may call upstream's.
        ("loss_type", "custom_loss", ("loss_type",)),
    ),
    programs=(
        "train.py", "*/train.py", "train_async.py", "*/train_async.py", "pretrain_*.py", "*/pretrain_*.py",
    ),
    sources=(
        "slime/utils/arguments.py",
        "slime/backends/megatron_utils/arguments.py",
        "slime/backends/sglang_utils/arguments.py",
        "megatron/training/arguments.py",
        # Where the parser of releases since 0.17 gets its flags from.
        "megatron/training/config/common_config.py",
        "megatron/training/config/resilience_config.py",
        "megatron/training/config/training_config.py",
        *_CLASSES,
    ),
)  # fmt: skip

VERL = Dialect(
    name="a configuration of verl",
    projects=("verl", "megatron-core"),
    marks=(
        "actor_rollout_ref.*", "critic.*", "data.train*", "data.*_files", "algorithm.*", "trainer.*",
        "engine.*", "optim.*", "config_name", "model_engine", "distillation.*", "reward*.*",
    ),
    # Of what it leaves to Megatron. All else stands in the configuration that it has composed.
    defaults={
        "cp_comm_type": None,
        "use_persistent_ckpt_worker": False,
        "load_main_params_from_ckpt": False,
        "num_layers_per_virtual_pipeline_stage": None,
        "num_virtual_stages_per_pipeline_rank": None,
        "pipeline_model_parallel_layout": None,
        "num_distributed_optimizer_instances": 1,
        "overlap_grad_reduce": False,
        "no_check_for_nan_in_loss_and_grad": False,
        "strategy": "fsdp",
        "critic.enable": None,
        "rollout_batch_size": None,
    },
    implies=(
        # The one that a whole configuration or its group `model_engine` names, and in SFT `engine`.
        ("model_engine", "*megatron", "strategy", "megatron"),
        ("config_name", "*megatron*", "strategy", "megatron"),
        ("engine", "megatron", "strategy", "megatron"),
        ("model_engine", "dp", "strategy", "fsdp"),
        ("engine", "fsdp*", "strategy", "fsdp"),
        # It gives the model the data parallel size for it.
        ("dynamic_context_parallel", "True", "context_parallel_size", ...),
        ("model_engine", "*", "strategy", ...),
        ("engine", "*", "strategy", ...),
        ("*.megatron.*", "*", "strategy", ...),
        # Of RL, and of SFT, which has it among the settings of its data, on by default.
        ("data.use_dynamic_bsz", "True", "use_dynamic_bsz", True),
        ("data.use_dynamic_bsz", "False", "use_dynamic_bsz", False),
        ("actor_rollout_ref.*", "*", "use_dynamic_bsz", False),
        ("algorithm.*", "*", "use_dynamic_bsz", False),
        # Left out, it is what the actor has, and that decides then.
        ("actor_rollout_ref.*", "*", "log_prob_use_dynamic_bsz", False),
        ("algorithm.*", "*", "log_prob_use_dynamic_bsz", False),
        ("optim.*", "*", "use_dynamic_bsz", True),
        ("engine", "*", "use_dynamic_bsz", True),
        ("engine.*", "*", "use_dynamic_bsz", True),
        ("data.*", "*", "use_dynamic_bsz", ...),
    ),
    whole={
        "config_name": ("ppo_trainer*", "ppo_megatron_trainer*", "sft_trainer*"),
        "config_path": ("config",),  # that of verl itself
        "config_dir": (),
    },
    programs=(
        "verl.trainer.main_ppo", "verl.trainer.main_ppo_sync", "verl.trainer.main_ppo_v0",
        "verl.trainer.sft_trainer", "verl.trainer.sft_trainer_ray", "*verl/trainer/main_ppo.py",
        "*verl/trainer/sft_trainer.py", "*verl/trainer/sft_trainer_ray.py",
    ),
    # What verl has composed itself, for whoever wants to see all of it.
    aside={
        "tensor_model_parallel_size": ("*.rollout.*", "*.inference.*"),
        "use_dynamic_bsz": ("data.*",),
        "lora.merge": ("critic.*",),
        "lora.rank": ("critic.*",),
        "lora_rank": ("critic.*",),
    },
    passed=(
        "config_path", "nproc_per_node", "nnodes", "node_rank", "master_addr", "master_port", "standalone",
        "*_kwargs.*", "hydra.*",
    ),
    sources=(
        "verl/trainer/config/_generated_ppo_megatron_trainer.yaml",
        "verl/trainer/config/_generated_ppo_trainer.yaml",
        "verl/trainer/config/sft_trainer_engine.yaml",
        *_CLASSES,
    ),
    assumes={"megatron-core": (Setting(key="strategy", among=("megatron", "mindspeed*")),)},
)  # fmt: skip

DIALECTS = (FLAGS, VERL)
