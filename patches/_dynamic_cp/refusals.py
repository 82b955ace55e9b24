"""The settings of verl 0.8.0 under which dynamic context parallelism cannot be right."""

from collections.abc import Iterable
from types import ModuleType
from typing import Any

from overlay.patches._dynamic_cp.attention import confirm_attention
from overlay.patches._dynamic_cp.losses import opened

#: Whether something is refused, why, and what to set instead.
Refusal = tuple[bool, str, str]

#: The auxiliary losses of Megatron's router that balance experts. Its z-loss is a mean over tokens, and of
#: the ranks of a subgroup each has as many: that is right for every size.
_BALANCING = ("aux_loss", "seq_aux_loss", "global_aux_loss")
_OFF = "dynamic_context_parallel=False"
#: With so many pipeline ranks, both neighbours of a rank are the same one.
_PAIR = 2


def refuse(engine: Any, data: Any, module: ModuleType) -> None:
    """Raise for each setting of an engine or a batch under which upstream computes another part of the batch.

    Depends on settings only, so all ranks raise alike, and before any of them waits for another. `module` is
    that of the engine's class.
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
        (has("multi_latent_attention"), "multi-latent attention, which knows the static group only", _OFF),
        (
            has("experimental_attention_variant") or has("linear_attention_freq") or has("is_hybrid_model"),
            "linear or sparse attention and state space layers, which know the static group only",
            _OFF,
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
        (hasattr(model.hf_config, "vision_config"), "a vision model, which splits sequences by itself", _OFF),
        *refusals_of_model(settings, trained=not getattr(config, "forward_only", False)),
    )
    confirm_attention()
    _raise_first(refusals)


def refuse_settings(config: Any, is_value_model: bool) -> None:
    """Raise for what can be told as soon as there is an engine."""
    static = config.context_parallel_size
    alone = "a value head, of which each rank would compute the whole batch"
    both = f"context_parallel_size={static}: a sequence is shared by either the static or a dynamic group"
    _raise_first(
        ((is_value_model, alone, f"{_OFF} for the critic"), (static != 1, both, "context_parallel_size=1"))
    )
    if config.max_seqlen_per_dp_cp_rank is None:
        raise ValueError(
            "dynamic_context_parallel=True needs max_seqlen_per_dp_cp_rank. Set it to the number of tokens "
            "of one sequence that a rank can hold."
        )


def refuse_loss(loss_function: Any) -> None:
    """Raise `NotImplementedError` for a loss of verl that averages over all ranks where some have no loss.

    Depends on settings only, as `refuse` does.
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


def refusals_of_model(settings: Any, *, trained: bool) -> tuple[Refusal, ...]:
    """Return the refusals of Megatron's `TransformerConfig`: none unless its model is trained."""
    if not trained:
        return ()
    experts = bool(getattr(settings, "num_moe_experts", None))
    z_loss = experts and bool(getattr(settings, "moe_z_loss_coeff", None))
    return (
        (
            _crossed(settings),
            "virtual stages on two pipeline ranks without overlap_p2p_comm: one message is taken for another",
            "overlap_p2p_comm=True and batch_p2p_comm=False in override_transformer_config",
        ),
        (
            experts and _balanced(settings),
            "an auxiliary loss that balances experts: Megatron takes it over the tokens of one rank",
            "moe_router_load_balancing_type='none' or moe_aux_loss_coeff=0 in override_transformer_config",
        ),
        (
            z_loss and bool(getattr(settings, "calculate_per_token_loss", False)),
            "moe_z_loss_coeff and calculate_per_token_loss=True together: verl 0.8.0 divides by no tokens",
            "moe_z_loss_coeff=None or calculate_per_token_loss=False",
        ),
    )


def _balanced(settings: Any) -> bool:
    """Return whether a router has a balancing loss with any weight."""
    kinds = getattr(settings, "moe_router_load_balancing_type", None) or ()
    weights = getattr(settings, "moe_aux_loss_coeff", 0.0)
    if isinstance(kinds, str):
        kinds = (kinds,)
    if weights is None or isinstance(weights, (int, float)):
        weights = [weights] * len(kinds)  # else a sequence, of whatever class a configuration has for it
    return any(kind in _BALANCING and weight for kind, weight in zip(kinds, weights, strict=False))


def _crossed(settings: Any) -> bool:
    """Return whether two ranks would each take a message of the other for another one.

    Each posts what is for the previous stage and from it first, which is the same rank as the next.
    Megatron's own training script refuses it as well; the schedule does not.
    """
    virtual = getattr(settings, "virtual_pipeline_model_parallel_size", None)
    pair = getattr(settings, "pipeline_model_parallel_size", 1) == _PAIR
    return bool(virtual and pair and not getattr(settings, "overlap_p2p_comm", False))
