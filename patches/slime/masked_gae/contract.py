"""Advantages are those of the trained tokens alone, on one rank: what needs several is not seen here."""

from functools import partial

from overlay.compat.contracts.slime import contract, on_megatron


@on_megatron()
def wrong(seed: str, look: str = "wrong") -> str:
    """Return which advantages are others, or, as `alike`, which of those that slime estimates well."""
    from overlay.compat.slime_on_cpu import masked_gae

    return str(getattr(masked_gae, look)(seed))


CONTRACT = contract(wrong, "slime.whiten-over-cp", "slime.masked-gae", alike=partial(wrong, look="alike"))
