"""Advantages are those of one process in float64, on one rank: what needs several is not seen here."""

from functools import partial

from overlay.compat.contracts.slime import contract, on_megatron


@on_megatron()
def wrong(seed: str, look: str = "wrong") -> str:
    """Return which advantages are others, of small and large rewards, or as `alike`, of values near zero."""
    from overlay.compat.slime_on_cpu import advantages

    return str(getattr(advantages, look)(seed))


CONTRACT = contract(wrong, "slime.whiten-over-cp", alike=partial(wrong, look="alike"))
