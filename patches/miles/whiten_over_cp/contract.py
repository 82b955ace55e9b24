"""Advantages are those of one process in float64, on one rank: what needs several is not seen here."""

from __future__ import annotations

import os

from overlay.patch import Contract
from overlay.testing import with_patches


def wrong(seed: str) -> str:
    """Return which advantages are others, of rewards around zero, and of large ones, empty if none are.

    Float32 sums lose the variance of large ones.
    """
    from overlay.compat.megatron_on_cpu import megatron

    os.environ["SLIME_FORK"] = "miles"
    with megatron():
        from overlay.compat.slime_on_cpu import advantages

        return advantages.wrong(seed)


CONTRACT = Contract(
    check=with_patches(wrong, "miles.whiten-over-cp"), before=("megatron.core", "ray", "tensordict")
)
