"""The settings of verl 0.8.0 under which dynamic context parallelism cannot be right."""

from types import ModuleType
from typing import Any

from overlay.patches._dynamic_cp.attention import confirm_attention
from overlay.patches._dynamic_cp.losses import opened

#: The auxiliary losses of Megatron's router that balance experts. Its z-loss is a mean over tokens, and of
#: the ranks of a subgroup each has as many: that is right for every size.
_BALANCING = ("aux_loss", "seq_aux_loss", "global_aux_loss")
_OFF = "dynamic_context_parallel=False"
#: With so many pipeline ranks, both neighbours of a rank are the same one.
_PAIR = 2


def _unsupported(why: str, way_out: str) -> NotImplementedError:
    return NotImplementedError(f"dynamic_context_parallel=True does not work with {why}. Set {way_out}.")


def refuse(engine: Any, data: Any, module: ModuleType) -> None:
    """Raise for each setting of an engine or a batch under which upstream computes another part of the batch.

    Depends on settings only, so all ranks raise alike, and before any of them waits for another. `module` is
    that of the engine's class.
    """
    from megatron.core.utils import get_model_config

    config, settings = engine.engine_config, get_model_config(engine.module[0])
    is_value_model = getattr(engine, "is_value_model", False)
    refuse_settings(config, is_value_model or isinstance(engine, module.MegatronEngineWithValueHead))
    confirm_attention()
    _refuse_parts(engine, data, settings)
    if not getattr(config, "forward_only", False):
        refuse_training(settings)


def refuse_settings(config: Any, is_value_model: bool) -> None:
    """Raise for what can be told as soon as there is an engine."""
    static = config.context_parallel_size
    if is_value_model:
        what = "a value head, of which each rank would compute the whole batch"
        raise _unsupported(what, f"{_OFF} for the critic")
    if static != 1:
        what = f"context_parallel_size={static}: a sequence is shared by either the static or a dynamic group"
        raise _unsupported(what, "context_parallel_size=1")
    if config.max_seqlen_per_dp_cp_rank is None:
        raise ValueError(
            "dynamic_context_parallel=True needs max_seqlen_per_dp_cp_rank. Set it to the number of tokens "
            "of one sequence that a rank can hold."
        )


def _refuse_parts(engine: Any, data: Any, settings: Any) -> None:
    """Raise for parts of an engine or a model that know no group but the static one, or split by themselves.

    `settings` are Megatron's `TransformerConfig`.
    """
    from verl.utils import tensordict_utils as tu

    def told(key: str) -> Any:
        return tu.get_non_tensor_data(data, key, default=False)

    def has(*names: str) -> bool:
        return any(getattr(settings, name, None) for name in names)

    config, model = engine.engine_config, engine.model_config
    if getattr(config, "use_fused_kernels", False) or told("use_fused_kernels"):
        raise _unsupported("use_fused_kernels=True: the fused forward ignores it", "use_fused_kernels=False")
    if not config.use_remove_padding:
        what = "use_remove_padding=False: padded batches cannot be split"
        raise _unsupported(what, "use_remove_padding=True")
    if model.mtp.enable or has("mtp_num_layers"):
        what = "multi-token prediction, which shifts tokens within the static group"
        raise _unsupported(what, "mtp.enable=False, and mtp_num_layers=0 in override_transformer_config")
    names = ("multi_latent_attention", "experimental_attention_variant", "linear_attention_freq")
    if has(*names, "is_hybrid_model"):
        what = "multi-latent attention, linear or sparse attention and state space layers"
        raise _unsupported(f"{what}, which know the static group only", _OFF)
    # Engines that are put together by hand, as in tests, need not have what they do not use.
    replay = getattr(getattr(config, "router_replay", None), "mode", "disabled")
    if replay != "disabled":
        what = f"router_replay.mode={replay!r}: it lays tokens out for the static group"
        raise _unsupported(what, "router_replay.mode='disabled'")
    if told("distillation_use_topk"):
        what = "top-k distillation: it lays tokens out for the static group"
        raise _unsupported(what, "a distillation loss without top-k")
    if hasattr(model.hf_config, "vision_config"):
        raise _unsupported("a vision model, which splits sequences by itself", _OFF)


def refuse_training(settings: Any) -> None:
    """Raise for what Megatron's `TransformerConfig` says of a model that is to be trained."""
    if _crossed(settings):
        what = "virtual stages on two pipeline ranks without overlap_p2p_comm"
        way_out = "overlap_p2p_comm=True and batch_p2p_comm=False in override_transformer_config"
        raise _unsupported(f"{what}: one message is taken for another", way_out)
    if not getattr(settings, "num_moe_experts", None):
        return
    if _balanced(settings):
        what = "an auxiliary loss that balances experts: Megatron takes it over the tokens of one rank"
        way_out = "moe_router_load_balancing_type='none' or moe_aux_loss_coeff=0"
        raise _unsupported(what, f"{way_out} in override_transformer_config")
    if getattr(settings, "moe_z_loss_coeff", None) and getattr(settings, "calculate_per_token_loss", False):
        what = "moe_z_loss_coeff and calculate_per_token_loss=True together: verl 0.8.0 divides by no tokens"
        raise _unsupported(what, "moe_z_loss_coeff=None or calculate_per_token_loss=False")


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


def refuse_loss(loss_function: Any) -> None:
    """Raise for a loss of verl that averages over all ranks where some have no loss. See `refuse`."""
    from megatron.core import parallel_state as mpu

    def told(settings: Any, name: str) -> Any:
        # A mapping of verl's; a user's loss may hold anything by this name.
        return settings.get(name, None) if hasattr(settings, "get") else None

    _, config = opened(loss_function)
    policy_loss = getattr(config, "policy_loss", None)
    correction = told(policy_loss, "rollout_correction")
    bypassed = told(policy_loss, "loss_mode") == "bypass_mode" and told(correction, "rollout_is")
    stages = mpu.get_pipeline_model_parallel_world_size()
    if bypassed and told(correction, "rollout_is_batch_normalize") and stages > 1:
        what = f"loss_mode=bypass_mode and rollout_is_batch_normalize=True in {stages} pipeline stages"
        why = "verl averages over all ranks, and only those of the last stage have a loss"
        raise _unsupported(f"{what}: {why}", "rollout_is_batch_normalize=False")
