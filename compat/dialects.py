"""How the settings of jobs are written, for `overlay audit --settings`, and what upstreams take by default.

A default here goes before one that is read in an upstream's own files: it is one that no file states in one
place, or that defects ask for by the end of a path alone.
"""

from __future__ import annotations

from overlay.defect import Dialect, Setting

#: Megatron's own, whoever starts it: what its parser, or the class behind an argument, begins with.
_MEGATRON: dict[str, object] = {
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "context_parallel_size": 1,
    "num_layers_per_virtual_pipeline_stage": None,
    "num_virtual_stages_per_pipeline_rank": None,
    "virtual_pipeline_model_parallel_size": None,
    "pipeline_model_parallel_layout": None,
    "nccl_communicator_config_path": None,
    "sequence_parallel": False,
    "calculate_per_token_loss": False,
    "recompute_granularity": None,
    "num_experts": None,
    "multi_latent_attention": False,
    "softmax_type": "vanilla",
    "cp_comm_type": None,
    "moe_aux_loss_coeff": 0.0,
    "moe_z_loss_coeff": None,
    "moe_router_score_function": "softmax",
    "moe_router_load_balancing_type": "aux_loss",
    "moe_router_dtype": None,
    "moe_layer_recompute": False,
    "mtp_num_layers": None,
    "async_save": False,
    "use_persistent_ckpt_worker": False,
    "load_main_params_from_ckpt": False,
    "dist_ckpt_optim_fully_reshardable": False,
    "overlap_grad_reduce": False,
    "optimizer_cpu_offload": False,
    "experimental_attention_variant": None,
    "attention_output_gate": False,
    "fp32_residual_connection": False,
    "use_precision_aware_optimizer": False,
    "reuse_grad_buf_for_mxfp8_param_ag": False,
    "num_distributed_optimizer_instances": 1,
    "use_checkpoint_opt_param_scheduler": False,
    "no_check_for_nan_in_loss_and_grad": False,
    "no_overlap_p2p_communication": False,
    "log_max_attention_logit": False,
    "qk_clip": False,
    "lr_decay_style": "linear",
    "lr_warmup_iters": 0,
    "lr_warmup_samples": 0,
    "lr_warmup_fraction": None,
    "weight_decay_incr_style": "constant",
    "fp16": False,
    "loss_scale": None,
    "decoupled_lr": None,
}
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
    "advantage_estimator": "grpo",
    "allgather_cp": False,
    "balance_by_flops": False,
    "balance_data": False,
    "ckpt_step": None,
    "colocate": False,
    "critic_lr_warmup_iters": 0,
    "custom_reward_post_process_path": None,
    "disable_rewards_normalization": False,
    "distributed_timeout_minutes": 10,
    "dynamic_sampling_filter_path": None,
    "enable_mtp_training": False,
    "eps_clip_c": None,
    "eval_config": None,
    "eval_max_prompt_len": None,
    "eval_min_new_tokens": None,
    "gamma": 1.0,
    "keep_old_actor": False,
    "kl_coef": 0.0,
    "lambd": 1.0,
    "log_correct_samples": False,
    "loss_mask_type": "qwen",
    "loss_type": "policy_loss",
    "megatron_to_hf_mode": "raw",
    "normalize_advantages": False,
    "offload": False,
    "offload_train": False,
    "opd_teacher_ckpt_step": None,
    "opd_type": None,
    "partial_rollout": False,
    "qkv_format": "thd",
    "ref_ckpt_step": None,
    "rollout_all_samples_process_path": None,
    "rollout_batch_size": None,
    "rollout_function_path": "slime.rollout.sglang_rollout.generate_rollout",
    "rollout_max_prompt_len": None,
    "rollout_sample_filter_path": None,
    "rollout_temperature": 1.0,
    "train_backend": "megatron",
    "true_on_policy_mode": False,
    "use_dynamic_batch_size": False,
    "use_dynamic_global_batch_size": False,
    "use_opd": False,
    "use_rollout_routing_replay": False,
}

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
