"""The settings of verl 0.8.0 under which dynamic context parallelism cannot be right."""

from __future__ import annotations

from overlay.patches._dynamic_cp.attention import confirm_attention
from overlay.patches._dynamic_cp.losses import opened
from overlay.patches._dynamic_cp.model_refusals import refusals_of_model

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType
    from typing import Any


def refuse(engine: Any, data: Any, module: ModuleType) -> None:
    """Raise for every setting under which upstream computes something else than its part of the batch.

    Depends on settings only, so all ranks raise alike, and before any of them waits for another.

    Args:
        engine: verl's Megatron engine.
        data: The batch that it is to run.
        module: That of the engine's class.

    Raises:
        NotImplementedError: Dynamic context parallelism cannot be right with this setting.
        ValueError: A setting that it needs is missing.

    """
    from megatron.core.utils import get_model_config
    from verl.utils import tensordict_utils as tu

    def told(key: str) -> Any:
        return tu.get_non_tensor_data(data, key, default=False)

    config, model = engine.engine_config, engine.model_config
    settings = get_model_config(engine.module[0])

    def has(name: str) -> bool:
        return bool(getattr(settings, name, None))

    is_value_model = getattr(engine, "is_value_model", False)
    refuse_settings(config, is_value_model or isinstance(engine, module.MegatronEngineWithValueHead))
    # Engines that are put together by hand, as in tests, need not have what they do not use.
    replay = getattr(getattr(config, "router_replay", None), "mode", "disabled")
    refusals = (
        (
            getattr(config, "use_fused_kernels", False) or told("use_fused_kernels"),
            "use_fused_kernels=True: the fused forward ignores it",
            "use_fused_kernels=False",
        ),
        (
            not config.use_remove_padding,
            "use_remove_padding=False: padded batches cannot be split",
            "use_remove_padding=True",
        ),
        (
            model.mtp.enable or has("mtp_num_layers"),
            "multi-token prediction, which shifts tokens within the static group",
            "mtp.enable=False, and mtp_num_layers=0 in override_transformer_config",
        ),
        (
            has("multi_latent_attention"),
            "multi-latent attention, which knows the static group only",
            "dynamic_context_parallel=False",
        ),
        (
            has("experimental_attention_variant") or has("linear_attention_freq") or has("is_hybrid_model"),
            "linear or sparse attention and state space layers, which know the static group only",
            "dynamic_context_parallel=False",
        ),
        (
            replay != "disabled",
            f"router_replay.mode={replay!r}: it lays tokens out for the static group",
            "router_replay.mode='disabled'",
        ),
        (
            told("distillation_use_topk"),
            "top-k distillation: it lays tokens out for the static group",
            "a distillation loss without top-k",
        ),
        (
            hasattr(model.hf_config, "vision_config"),
            "a vision model, which splits sequences over the static group by itself",
            "dynamic_context_parallel=False",
        ),
        *refusals_of_model(settings, trained=not getattr(config, "forward_only", False)),
    )
    confirm_attention()
    _raise_first(refusals)


def refuse_settings(config: Any, is_value_model: bool) -> None:
    """Raise for what can be told as soon as there is an engine. For arguments and errors see `refuse`."""
    static = config.context_parallel_size
    refusals = (
        (
            is_value_model,
            "a value head, of which each rank would compute the whole batch",
            "dynamic_context_parallel=False for the critic",
        ),
        (
            static != 1,
            f"context_parallel_size={static}: a sequence is shared by either the static or a dynamic group",
            "context_parallel_size=1",
        ),
    )
    _raise_first(refusals)
    if config.max_seqlen_per_dp_cp_rank is None:
        raise ValueError(
            "dynamic_context_parallel=True needs max_seqlen_per_dp_cp_rank. Set it to the number of tokens "
            "of one sequence that a rank can hold."
        )


def refuse_loss(loss_function: Any) -> None:
    """Raise for a loss that waits for ranks that have none. Depends on settings only, as `refuse` does.

    Args:
        loss_function: As verl's engine gets it.

    Raises:
        NotImplementedError: verl averages a weight over all ranks, and not all of them compute a loss.

    """
    from megatron.core import parallel_state as mpu

    def told(settings: Any, name: str) -> Any:
        # A mapping of verl's; a user's loss may hold anything by this name.
        return settings.get(name, None) if hasattr(settings, "get") else None

    _, config = opened(loss_function)
    policy_loss = getattr(config, "policy_loss", None)
    correction = told(policy_loss, "rollout_correction")
    bypassed = told(policy_loss, "loss_mode") == "bypass_mode" and told(correction, "rollout_is")
    normalised = bypassed and told(correction, "rollout_is_batch_normalize")
    stages = mpu.get_pipeline_model_parallel_world_size()
    if normalised and stages > 1:
        raise NotImplementedError(
            "dynamic_context_parallel=True does not work with loss_mode=bypass_mode and "
            f"rollout_is_batch_normalize=True in {stages} pipeline stages: verl averages over all ranks, and "
            "only those of the last stage have a loss. Set rollout_is_batch_normalize=False."
        )


def _raise_first(refusals: Iterable[tuple[Any, str, str]]) -> None:
    """Raise the first refusal whose condition is true: (condition, what does not work, way out)."""
    for refused, why, way_out in refusals:
        if refused:
            raise NotImplementedError(
                f"dynamic_context_parallel=True does not work with {why}. Set {way_out}."
            )
