"""What experts and pipeline stages a model must not have under dynamic context parallelism."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    #: Whether it is refused, why, and what to set instead.
    Refusal = tuple[bool, str, str]

#: The auxiliary losses of Megatron's router that balance experts. Its z-loss is a mean over tokens, and of
#: the ranks of a subgroup each has as many: that is right for every size.
_BALANCING = ("aux_loss", "seq_aux_loss", "global_aux_loss")
#: With so many pipeline ranks, both neighbours of a rank are the same one.
_PAIR = 2


def refusals_of_model(settings: Any, *, trained: bool) -> tuple[Refusal, ...]:
    """Return the refusals of a model.

    Args:
        settings: Megatron's `TransformerConfig`.
        trained: Whether it is ever trained: else it has no auxiliary losses, and sends one way at a time.

    """
    z_loss = _has_experts(settings) and bool(getattr(settings, "moe_z_loss_coeff", None))
    per_token = bool(getattr(settings, "calculate_per_token_loss", False))
    crossed = (
        "virtual stages on two pipeline ranks without overlap_p2p_comm: each rank is both the next and the "
        "previous one of the other, and Megatron sends both messages at once, in an order in which one is "
        "taken for the other"
    )
    balanced = (
        "an auxiliary loss that balances experts: Megatron takes it over the tokens of the static group, "
        "which are those of one rank, whichever part of a sequence it holds"
    )
    unscaled = (
        "moe_z_loss_coeff and calculate_per_token_loss=True together: Megatron multiplies the z-loss by a "
        "number of tokens that verl 0.8.0 never divides by"
    )
    return (
        (
            trained and _crossed(settings),
            crossed,
            "overlap_p2p_comm=True and batch_p2p_comm=False in override_transformer_config",
        ),
        (
            trained and _balanced(settings),
            balanced,
            "moe_router_load_balancing_type='none' or moe_aux_loss_coeff=0 in override_transformer_config",
        ),
        (
            trained and z_loss and per_token,
            unscaled,
            "moe_z_loss_coeff=None or calculate_per_token_loss=False",
        ),
    )


def _has_experts(settings: Any) -> bool:
    return bool(getattr(settings, "num_moe_experts", None))


def _balanced(settings: Any) -> bool:
    """Return whether the model's router has a balancing loss with any weight."""
    kinds = getattr(settings, "moe_router_load_balancing_type", None) or ()
    weights = getattr(settings, "moe_aux_loss_coeff", 0.0)
    if isinstance(kinds, str):
        kinds = (kinds,)
    if weights is None or isinstance(weights, (int, float)):
        weights = [weights] * len(kinds)  # else a sequence, of whatever class a configuration has for it
    used = any(kind in _BALANCING and weight for kind, weight in zip(kinds, weights, strict=False))
    return used and _has_experts(settings)


def _crossed(settings: Any) -> bool:
    """Return whether two ranks would each take a message of the other for another one.

    Each posts what is for the previous stage and from it, then what is for the next and from it. So the first
    that one sends, to its previous, is the first that the other takes, from its previous. Megatron's own
    training script refuses it as well; the schedule does not.
    """
    virtual = getattr(settings, "virtual_pipeline_model_parallel_size", None)
    pair = getattr(settings, "pipeline_model_parallel_size", 1) == _PAIR
    return bool(virtual and pair and not getattr(settings, "overlap_p2p_comm", False))
