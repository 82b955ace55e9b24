"""Advantages are those of one process in float64, on one rank: what needs several is not seen here."""

from overlay.compat.contracts.slime import contract, on_megatron


@on_megatron(fork="miles")
def wrong(seed: str) -> str:
    """Return which advantages are others, of rewards around zero, and of large ones."""
    from overlay.compat.slime_on_cpu import advantages

    return advantages.wrong(seed)


CONTRACT = contract(wrong, "miles.whiten-over-cp")
