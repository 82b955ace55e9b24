"""What arming the patches asks of them. Written by `./scripts/matrix index`: not to be edited."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

INDEX: dict[str, dict[str, Any]] = {
    "megatron.agreement": {
        "id": "megatron.agreement",
        "companion": True,
        "modules": ("megatron.core.parallel_state",),
    },
    "megatron.async-checkpoint-pin": {
        "id": "megatron.async-checkpoint-pin",
        "modules": ("megatron.core.dist_checkpointing.strategies.async_utils",),
    },
    "megatron.attention-logit-memory": {
        "id": "megatron.attention-logit-memory",
        "revision": 2,
        "modules": ("megatron.core.optimizer.qk_clip",),
    },
    "megatron.cp-comm-type-by-layer": {
        "id": "megatron.cp-comm-type-by-layer",
        "modules": ("megatron.core.transformer.transformer_layer",),
    },
    "megatron.dynamic-cp-names": {
        "id": "megatron.dynamic-cp-names",
        "modules": (
            "megatron.core.parallel_state",
            "megatron.core.transformer.attention",
            "verl.utils.megatron_utils",
        ),
    },
    "megatron.gated-norm-over-tp": {
        "id": "megatron.gated-norm-over-tp",
        "revision": 2,
        "modules": (
            "slime.backends.megatron_utils.megatron_patch.megatron_chunked_grad_coalesce_patch",
            "megatron.core.distributed.finalize_model_grads",
        ),
    },
    "megatron.grad-norm": {
        "id": "megatron.grad-norm",
        "revision": 2,
        "modules": ("megatron.core.optimizer",),
    },
    "megatron.label-smoothing-over-tp": {
        "id": "megatron.label-smoothing-over-tp",
        "revision": 2,
        "modules": ("megatron.core.tensor_parallel.cross_entropy",),
    },
    "megatron.masked-loss-cp": {
        "id": "megatron.masked-loss-cp",
        "opt_in": True,
        "modules": ("megatron.core.pipeline_parallel.schedules",),
    },
    "megatron.mla-rotary-key-over-tp": {
        "id": "megatron.mla-rotary-key-over-tp",
        "modules": ("megatron.core.transformer.multi_latent_attention",),
    },
    "megatron.moe-aux-scale": {
        "id": "megatron.moe-aux-scale",
        "revision": 3,
        "opt_in": True,
        "modules": ("megatron.core.transformer.moe.router",),
    },
    "megatron.mtp-loss-scale": {
        "id": "megatron.mtp-loss-scale",
        "revision": 2,
        "opt_in": True,
        "modules": ("megatron.core.transformer.multi_token_prediction",),
    },
    "megatron.mtp-without-tokens": {
        "id": "megatron.mtp-without-tokens",
        "modules": ("megatron.core.transformer.multi_token_prediction",),
    },
    "megatron.param-groups-by-lr": {
        "id": "megatron.param-groups-by-lr",
        "modules": ("megatron.core.optimizer.optimizer",),
    },
    "megatron.recompute": {
        "id": "megatron.recompute",
        "modules": (
            "megatron.core.tensor_parallel.random",
            "verl.models.mcore.patch",
        ),
    },
    "megatron.reduce-contiguous": {
        "id": "megatron.reduce-contiguous",
        "modules": ("megatron.core.tensor_parallel.mappings",),
    },
    "megatron.reshardable-checkpoint": {
        "id": "megatron.reshardable-checkpoint",
        "revision": 2,
        "modules": ("megatron.core.optimizer.distrib_optimizer",),
    },
    "megatron.resumed-weight-decay": {
        "id": "megatron.resumed-weight-decay",
        "modules": ("megatron.core.optimizer_param_scheduler",),
    },
    "megatron.sigmoid-aux-scores": {
        "id": "megatron.sigmoid-aux-scores",
        "modules": (
            "megatron.core.transformer.moe.router",
            "megatron.core.transformer.moe.moe_utils",
        ),
    },
    "megatron.uniform-recompute": {
        "id": "megatron.uniform-recompute",
        "modules": ("megatron.core.transformer.transformer_block",),
    },
    "megatron.vpp-send-before-free": {
        "id": "megatron.vpp-send-before-free",
        "modules": ("megatron.core.pipeline_parallel.p2p_communication",),
    },
    "miles.capped-partitions": {
        "id": "miles.capped-partitions",
        "modules": ("miles.utils.dp_schedule",),
    },
    "miles.fast-partitioner": {
        "id": "miles.fast-partitioner",
        "modules": ("miles.utils.seqlen_balancing",),
    },
    "miles.loss-memory": {
        "id": "miles.loss-memory",
        "modules": (
            "miles.backends.training_utils.loss_hub.logit_processors",
            "miles.backends.training_utils.loss",
        ),
    },
    "miles.whiten-over-cp": {
        "id": "miles.whiten-over-cp",
        "revision": 2,
        "modules": ("miles.backends.training_utils.loss_hub.advantages",),
    },
    "slime.allgather-cp-models": {
        "id": "slime.allgather-cp-models",
        "modules": ("slime.backends.megatron_utils.arguments",),
    },
    "slime.async-groups": {
        "id": "slime.async-groups",
        "opt_in": True,
        "modules": ("slime.rollout.fully_async_rollout",),
    },
    "slime.bridge-flags": {
        "id": "slime.bridge-flags",
        "modules": ("slime.backends.megatron_utils.model_provider",),
    },
    "slime.capped-partitions": {
        "id": "slime.capped-partitions",
        "modules": (
            "slime.backends.megatron_utils.data",
            "slime.utils.dp_schedule",
        ),
    },
    "slime.checkpoint-step": {
        "id": "slime.checkpoint-step",
        "modules": ("slime.backends.megatron_utils.actor",),
    },
    "slime.eps-clip-c": {
        "id": "slime.eps-clip-c",
        "revision": 2,
        "modules": ("slime.backends.megatron_utils.loss",),
    },
    "slime.fast-partitioner": {
        "id": "slime.fast-partitioner",
        "modules": ("slime.utils.seqlen_balancing",),
    },
    "slime.group-baseline": {
        "id": "slime.group-baseline",
        "revision": 2,
        "opt_in": True,
        "modules": ("slime.ray.placement_group",),
    },
    "slime.group-timeouts": {
        "id": "slime.group-timeouts",
        "modules": ("slime.utils.reloadable_process_group",),
    },
    "slime.hf-attention-gradient": {
        "id": "slime.hf-attention-gradient",
        "revision": 2,
        "modules": ("slime_plugins.models.hf_attention",),
    },
    "slime.loss-memory": {
        "id": "slime.loss-memory",
        "modules": ("slime.backends.megatron_utils.loss",),
    },
    "slime.masked-gae": {
        "id": "slime.masked-gae",
        "requires": ("slime.whiten-over-cp",),
        "opt_in": True,
        "modules": ("slime.backends.megatron_utils.loss",),
    },
    "slime.metrics": {
        "id": "slime.metrics",
        "opt_in": True,
        "switch": "OVERLAY_METRICS",
        "modules": (
            "slime.utils.tracking_utils",
            "slime.utils.logging_utils",
            "slime.observability.logging_utils",
        ),
    },
    "slime.one-step-log-probs": {
        "id": "slime.one-step-log-probs",
        "modules": ("slime.backends.megatron_utils.actor",),
    },
    "slime.partial-rollout-budget": {
        "id": "slime.partial-rollout-budget",
        "revision": 2,
        "modules": (
            "slime.rollout.sglang_rollout",
            "slime.rollout.sglang_streaming_rollout",
        ),
    },
    "slime.resumed-schedule": {
        "id": "slime.resumed-schedule",
        "modules": ("slime.backends.megatron_utils.model",),
    },
    "slime.tool-turn-mask": {
        "id": "slime.tool-turn-mask",
        "modules": ("slime.utils.mask_utils",),
    },
    "slime.value-temperature": {
        "id": "slime.value-temperature",
        "modules": ("slime.backends.megatron_utils.loss",),
    },
    "slime.vpp-ceiling": {
        "id": "slime.vpp-ceiling",
        "requires": ("slime.capped-partitions",),
        "modules": ("slime.backends.megatron_utils.data",),
    },
    "slime.whiten-over-cp": {
        "id": "slime.whiten-over-cp",
        "revision": 2,
        "modules": ("slime.backends.megatron_utils.loss",),
    },
    "verl.critic-loss-scale": {
        "id": "verl.critic-loss-scale",
        "revision": 2,
        "modules": (
            "verl.workers.utils.losses",
            "verl.trainer.ppo.core_algos",
            "verl.workers.engine.base",
        ),
    },
    "verl.distillation-loss-scale": {
        "id": "verl.distillation-loss-scale",
        "modules": ("verl.trainer.distillation.losses",),
    },
    "verl.dynamic-cp-loss": {
        "id": "verl.dynamic-cp-loss",
        "revision": 3,
        "modules": (
            "verl.utils.megatron_utils",
            "verl.workers.engine.megatron.transformer_impl",
        ),
    },
    "verl.fast-partitioner": {
        "id": "verl.fast-partitioner",
        "modules": ("verl.utils.seqlen_balancing",),
    },
    "verl.fsdp-output-memory": {
        "id": "verl.fsdp-output-memory",
        "modules": ("verl.workers.engine.fsdp.transformer_impl",),
    },
    "verl.lora-own-memory": {
        "id": "verl.lora-own-memory",
        "modules": ("verl.workers.rollout.vllm_rollout.utils",),
    },
    "verl.megatron-offload-rest": {
        "id": "verl.megatron-offload-rest",
        "revision": 2,
        "modules": ("verl.workers.engine.megatron.transformer_impl",),
    },
    "verl.metrics": {
        "id": "verl.metrics",
        "opt_in": True,
        "switch": "OVERLAY_METRICS",
        "modules": ("verl.utils.tracking",),
    },
    "verl.moe-aux-scale": {
        "id": "verl.moe-aux-scale",
        "modules": ("verl.workers.engine.megatron.transformer_impl",),
    },
    "verl.mooncake-mark": {
        "id": "verl.mooncake-mark",
        "revision": 2,
        "modules": ("verl.checkpoint_engine.mooncake_checkpoint_engine",),
    },
    "verl.multi-turn-returns": {
        "id": "verl.multi-turn-returns",
        "revision": 2,
        "modules": ("verl.trainer.ppo.core_algos",),
    },
    "verl.offload-shared-storage": {
        "id": "verl.offload-shared-storage",
        "modules": ("verl.utils.megatron_utils",),
    },
    "verl.resume-epoch-boundary": {
        "id": "verl.resume-epoch-boundary",
        "modules": (
            "verl.utils.checkpoint.checkpoint_handler",
            "verl.trainer.main_ppo_sync",
            "verl.trainer.ppo.ray_trainer",
            "verl.trainer.fsdp_sft_trainer",
        ),
    },
    "verl.resume-lr-schedule": {
        "id": "verl.resume-lr-schedule",
        "modules": ("verl.utils.checkpoint.megatron_checkpoint_manager",),
    },
    "verl.seeded-validation": {
        "id": "verl.seeded-validation",
        "modules": ("verl.trainer.ppo.metric_utils",),
    },
    "verl.sft-balance": {
        "id": "verl.sft-balance",
        "revision": 2,
        "modules": ("verl.trainer.sft_trainer_ray",),
    },
    "verl.strict-token-budget": {
        "id": "verl.strict-token-budget",
        "revision": 2,
        "modules": ("verl.utils.seqlen_balancing",),
    },
    "verl.weight-transfer-order": {
        "id": "verl.weight-transfer-order",
        "modules": ("verl.checkpoint_engine.nccl_checkpoint_engine",),
    },
}
